// rubato-export: a Hugging Face folder of a checkpoint, in files of a bounded size.
//   rubato-export --checkpoint /ckpt/gpt-kjv --out /models/mine --dtype bf16
// A checkpoint is such a folder already, but for the bound, in f32, and with more beside it.
#include "common/standard_output.h"
#include "common/version.h"
#include "common/words.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/weight_files.h"

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace rubato::worker {
namespace {

constexpr std::uint64_t kShardBytesMost = std::uint64_t{1} << 50;

struct Request {
  std::string checkpoint;
  std::string out;
  WeightFormat format{.shard_bytes = 5'000'000'000};
};

Status run(const Request& request) {
  PosixFileSystem files;
  TRY(const std::string from, weights_at(files, request.checkpoint));
  TRY(const ModelConfig config, read_model_config(files, from));
  TRY(auto device, open_device({}));
  TRY(const ParameterTable table, parameter_table(config, *device));
  TRY(const WeightFiles weights, WeightFiles::open(files, from));
  std::vector<float> flat;
  TRY_OK(weights.read(table, flat));
  TRY_OK(make_lasting_directories(files, request.out));
  TRY(const auto there, files.list(request.out));
  if (!there.empty())
    return Error(Code::kAlreadyExists, request.out + " is not empty, it has " +
                                           excerpt(there.front()) + ": name another folder");
  // Somebody may want to look at such weights; no server can use them.
  if (const std::string broken = not_finite(table, flat, request.format.dtype); !broken.empty())
    std::cerr << "rubato-export: warning: " << from << ": " << broken << "\n";
  TRY_OK(write_weights(files, request.out, config, table, flat, request.format));
  std::cerr << request.out << ": " << table.parameter_count() << " parameters of " << from << "\n";
  return ok();
}

int run_command(int argc, char** argv) {
  CLI::App app("Writes the weights of a checkpoint as a Hugging Face folder.");
  app.set_version_flag("--version", version_of("rubato-export"));
  Request request;
  app.add_option(
         "--checkpoint", request.checkpoint,
         "a checkpoint, a directory of them (the newest is taken), or a Hugging Face folder")
      ->required();
  app.add_option("-o,--out", request.out, "the folder to write; made if it is not there")
      ->required();
  app.add_option("--shard-bytes", request.format.shard_bytes, "of tensors in one file, at most")
      ->check(CLI::Range(std::uint64_t{1}, kShardBytesMost));
  app.add_option("--dtype", request.format.dtype,
                 "of the weights: f32 (the default, as they were trained), or half as long and "
                 "rounded: bf16, f16")
      ->transform(CLI::IsMember({"F32", "BF16", "F16"}, CLI::ignore_case));
  CLI11_PARSE(app, argc, argv);
  const Status done = run(request);
  if (done.ok()) return 0;
  std::cerr << "rubato-export: " << done.error().what() << "\n";
  return 1;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  return rubato::run_printing("rubato-export",
                              [&] { return rubato::worker::run_command(argc, argv); });
}
