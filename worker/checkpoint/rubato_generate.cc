// rubato-generate: text from a checkpoint.
//   rubato-generate --checkpoint DIR --prompt "In the beginning" --tokens 200 --seed 1
// Computes where --device or RUBATO_DEVICE says, as a worker does; without either on the CPU.
#include "common/command.h"
#include "common/standard_output.h"
#include "common/version.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/weight_files.h"
#include "worker/data/json_tokenizer.h"
#include "worker/data/tokenizer.h"
#include "worker/model/generate.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <span>
#include <string>

#include <CLI/CLI.hpp>

namespace rubato::worker {
namespace {

struct Request {
  std::string checkpoint;
  std::string tokenizer;  // a tokenizer.json, or its folder; empty: bytes
  std::string end;        // the token that ends a text; empty: the tokenizer's own
  std::string prompt = "In the beginning";
  std::string device = "cpu";
  std::string isa = "auto";
  std::int64_t context = 1024;  // tokens that the model sees, at most
  GenerateOptions options;
};

Result<std::optional<JsonTokenizer>> tokenizer_of(FileSystem& files, const Request& request,
                                                  const ModelConfig& config) {
  if (request.tokenizer.empty() && !request.end.empty()) return end_without_tokenizer();
  if (request.tokenizer.empty() && config.vocabulary == ByteTokenizer::kVocabulary)
    return std::optional<JsonTokenizer>();
  if (request.tokenizer.empty())
    return Error(Code::kInvalid, "this model has a vocabulary of " +
                                     std::to_string(config.vocabulary) +
                                     ", not of bytes (257): name its tokenizer.json (--tokenizer)");
  TRY(JsonTokenizer tokenizer, JsonTokenizer::open(files, request.tokenizer));
  if (tokenizer.vocabulary() > config.vocabulary)
    return Error(Code::kInvalid, request.tokenizer + " has tokens below " +
                                     std::to_string(tokenizer.vocabulary()) + ", the model's are " +
                                     std::to_string(config.vocabulary));
  return std::optional(std::move(tokenizer));
}

Status run(Request request) {
  PosixFileSystem files;
  TRY(const std::string weights, weights_at(files, request.checkpoint));
  TRY(ModelConfig config, read_model_config(files, weights));
  config.sequence_length = std::min(config.sequence_length, request.context);
  TRY(const std::optional<JsonTokenizer> json, tokenizer_of(files, request, config));
  TRY(auto device, open_device({.kind = request.device, .isa = request.isa}));
  {  // before memory is taken for what config.json alone says
    TRY(const ParameterTable table, parameter_table(config, *device));
    TRY(const WeightFiles opened, WeightFiles::open(files, weights));
    TRY_OK(opened.check(table));
  }
  const auto stream = device->make_stream();
  TRY(auto model, make_forward_model(config, *device));
  TRY(Arena arena, device->allocate(Arena::bytes_for(DType::kF32, model->table().flat_count())));
  const Buffer parameters = arena.take(DType::kF32, model->table().flat_count());
  TRY_OK(load_parameters(files, weights, config, *device, *stream, model->table(), parameters));

  const ByteTokenizer bytes;
  const Result<std::int32_t> end =
      json ? json->end_of_text(request.end) : Result<std::int32_t>(ByteTokenizer::kEndOfText);
  if (!end.ok() && !request.end.empty()) return end.error().in(request.tokenizer);
  request.options.end_token = end.value_or(-1);  // where none is known, the text goes on
  std::cout << request.prompt << std::flush;
  auto prompt = json ? json->encode(request.prompt) : bytes.encode(request.prompt);
  // An empty prompt starts where a text starts.
  if (prompt.empty() && end.ok()) prompt.push_back(*end);
  const auto done =
      generate(*stream, *model, parameters, prompt, request.options, [&](std::int32_t token) {
        const std::span one(&token, 1);
        std::cout << (json ? json->decode(one) : bytes.decode(one)) << std::flush;
      });
  std::cout << "\n";
  if (!done.ok()) return done.error();
  return ok();
}

int run_command(int argc, char** argv) {
  CLI::App app("Makes text with the model of a checkpoint.");
  app.set_version_flag("--version", version_of("rubato-generate"));
  Request request;
  app.add_option(
         "--checkpoint", request.checkpoint,
         "a checkpoint, a directory of them (the newest is taken), or a Hugging Face folder")
      ->required();
  app.add_option("-t,--tokenizer", request.tokenizer,
                 "the model's tokenizer.json, or a folder that has one; without it bytes");
  app.add_option("--end", request.end, "the token that ends a text, of this tokenizer");
  app.add_option("--context", request.context, "how many of the last tokens the model sees")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--prompt", request.prompt, "what the text starts with");
  app.add_option("--tokens", request.options.tokens, "how many tokens to make")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--seed", request.options.seed, "another seed gives another text")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", request.options.temperature, "0: always the likeliest token")
      ->check(number_from(0, 100));
  app.add_option("--top-k", request.options.top_k, "choose among so many; 0: all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--device", request.device, "cpu (the default), cuda or cuda:N")
      ->envname("RUBATO_DEVICE");
  app.add_option("--isa", request.isa, "of the CPU: auto, sse41, avx2 or avx512_core");
  CLI11_PARSE(app, argc, argv);
  const Status done = run(request);
  if (done.ok()) return 0;
  std::cerr << "rubato-generate: " << done.error().what() << "\n";
  return 1;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  return rubato::run_printing("rubato-generate",
                              [&] { return rubato::worker::run_command(argc, argv); });
}
