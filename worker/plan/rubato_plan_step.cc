// rubato-plan-step: what a step of a model takes on a kind of GPU, predicted kernel by kernel, and
// whether it fits into its memory.
#include "common/files.h"
#include "common/json.h"
#include "common/standard_output.h"
#include "common/version.h"
#include "common/words.h"
#include "worker/plan/step_plan.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace rubato::worker {
namespace {

constexpr std::size_t kConfigBytesMax = 1 << 20;

struct Words {
  std::string model = "gpt2-124m";
  std::string config;
  std::string gpu = "H100";
  std::string precision = "bf16";
  std::int64_t sequence = 0;
  std::int64_t micro_batch = 8;
  std::int64_t micro_batches = 4;
};

Result<ModelConfig> model_of(const Words& words) {
  ModelConfig model;
  if (words.config.empty()) {
    TRY(model, model_preset(words.model));
  } else {
    PosixFileSystem files;
    TRY(const std::string text, read_text(files, words.config, kConfigBytesMax));
    const auto config = json::parse(text, {.refuses_duplicates = true});
    if (!config.ok()) return config.error().in(words.config);
    TRY(model, from_huggingface_config(*config));
  }
  if (words.sequence > 0) model.sequence_length = words.sequence;
  return model;
}

Result<GpuType> gpu_of(const std::string& name) {
  if (const auto type = gpu_type(name)) return *type;
  std::string known;
  for (const GpuType& type : gpu_types()) known += fmt::format(" {}", type.short_name);
  return Error(Code::kInvalid, "unknown GPU '" + name + "'; known are" + known);
}

void print(const Words& words, const GpuType& gpu, const StepPlan& plan, double peak_flops) {
  const double seconds = plan.seconds();
  fmt::print(
      "Predicted, not measured: {}, {} of {} ({:.0f} tokens a step), products in {}, one {}\n\n",
      words.config.empty() ? words.model : words.config,
      counted(words.micro_batches, "micro-batch"), counted(words.micro_batch, "sample"),
      plan.tokens, words.precision, gpu.short_name);
  fmt::print("{:<22} {:<44} {:>6} {:>9} {:>9} {:>9} {:>6}\n", "KERNEL", "SHAPE", "CALLS", "GB",
             "TFLOP", "MS", "SHARE");
  std::vector<StepPlan::Row> rows = plan.rows;
  std::ranges::stable_sort(rows, std::ranges::greater(), &StepPlan::Row::seconds);
  for (const auto& [calls, spent] : rows) {
    const auto count = static_cast<double>(calls.count);
    fmt::print("{:<22} {:<44} {:>6} {:>9.3f} {:>9.3f} {:>9.3f} {:>5.1f}%\n", calls.kernel,
               calls.shape, calls.count, count * calls.bytes / 1e9, count * calls.flops / 1e12,
               1e3 * spent, 100 * spent / seconds);
  }
  fmt::print(
      "\na step {:.1f} ms, {:.0f} tokens/s, {:.1f} TFLOP/s of the model ({:.0f} % of the "
      "peak)\n",
      1e3 * seconds, plan.tokens / seconds, plan.model_flops / seconds / 1e12,
      100 * plan.model_flops / seconds / peak_flops);
  const auto gpu_bytes = static_cast<std::uint64_t>(gpu.memory_bytes);
  fmt::print("memory {} of {}: {}{}\n", human_bytes(plan.memory.sum()), human_bytes(gpu_bytes),
             plan.memory.text(),
             plan.memory.sum() <= gpu_bytes
                 ? ""
                 : "; it does not fit: a smaller --micro-batch, --sequence or model");
}

Status run(const Words& words) {
  TRY(const GpuType gpu, gpu_of(words.gpu));
  TRY(const ModelConfig model, model_of(words));
  const Precision precision = words.precision == "bf16" ? Precision::kBf16 : Precision::kF32;
  TRY(StepPlan plan, plan_step({.model = model,
                                .micro_batch = words.micro_batch,
                                .micro_batches = words.micro_batches,
                                .precision = precision}));
  predict(plan, gpu, precision);
  print(words, gpu, plan, peak_flops(gpu, precision));
  return ok();
}

int run_command(int argc, char** argv) {
  CLI::App app(
      "What a step of a worker takes on a GPU, predicted kernel by kernel from the bytes and "
      "operations that follow from the shapes, and fixed efficiencies (docs/gpu.md).");
  app.set_version_flag("--version", version_of("rubato-plan-step"));
  Words words;
  auto* const preset = app.add_option("--model", words.model, "a preset of docs/api.md");
  preset->capture_default_str();
  app.add_option("--config", words.config, "a config.json of Hugging Face, instead of a preset")
      ->check(CLI::ExistingFile)
      ->excludes(preset);
  app.add_option("--sequence", words.sequence, "tokens of a sample; 0: the model's own")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--micro-batch", words.micro_batch, "samples of a micro-batch")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--micro-batches", words.micro_batches, "of this worker in a step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--gpu", words.gpu,
                 "its kind: A100-40GB, A100, H100, H200, L40S, or the label of its node")
      ->capture_default_str();
  app.add_option("--precision", words.precision, "of matrix products")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const Status done = run(words);
  if (done.ok()) return 0;
  std::fprintf(stderr, "rubato-plan-step: %s\n", done.error().what().c_str());
  return 1;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  return rubato::run_printing("rubato-plan-step",
                              [&] { return rubato::worker::run_command(argc, argv); });
}
