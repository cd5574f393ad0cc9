// rubato-generate: text from a checkpoint.
//   rubato-generate --checkpoint DIR --prompt "In the beginning" --tokens 200 --seed 1
// Computes where --device or RUBATO_DEVICE says, as a worker does; without either on the CPU.
#include "common/version.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/tokenizer.h"
#include "worker/model/generate.h"

#include <iostream>
#include <string>

#include <CLI/CLI.hpp>

namespace rubato::worker {
namespace {

struct Request {
  std::string checkpoint;
  std::string prompt = "In the beginning";
  std::string device = "cpu";
  std::string isa = "auto";
  GenerateOptions options;
};

Status run(Request request) {
  PosixFileSystem files;
  TRY(const CheckpointInfo info, read_checkpoint_info(files, request.checkpoint));
  if (info.model.vocabulary != ByteTokenizer::kVocabulary)
    return Error(Code::kInvalid, "this checkpoint has a vocabulary of " +
                                     std::to_string(info.model.vocabulary) +
                                     "; text can be made from byte-level ones (257) only");
  TRY(auto device, open_device({.kind = request.device, .isa = request.isa}));
  const auto stream = device->make_stream();
  TRY(auto model, make_model(info.model, 1, *device));
  TRY(Arena arena, device->allocate(Arena::bytes_for(DType::kF32, model->table().flat_count())));
  const Buffer parameters = arena.take(DType::kF32, model->table().flat_count());
  TRY_OK(load_parameters(files, request.checkpoint, *device, *stream, model->table(), parameters));

  const ByteTokenizer tokenizer;
  request.options.end_token = ByteTokenizer::kEndOfText;
  std::cout << request.prompt << std::flush;
  // An empty prompt starts where a text starts.
  auto prompt = tokenizer.encode(request.prompt);
  if (prompt.empty()) prompt.push_back(ByteTokenizer::kEndOfText);
  const auto done = generate(
      *stream, *model, parameters, prompt, request.options,
      [&](std::int32_t token) { std::cout << tokenizer.decode({&token, 1}) << std::flush; });
  std::cout << "\n";
  if (!done.ok()) return done.error();
  return ok();
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  CLI::App app("Makes text with the model of a checkpoint.");
  app.set_version_flag("--version", rubato::version_of("rubato-generate"));
  rubato::worker::Request request;
  app.add_option("--checkpoint", request.checkpoint,
                 "a checkpoint, or a directory of them (the newest is taken)")
      ->required();
  app.add_option("--prompt", request.prompt, "what the text starts with");
  app.add_option("--tokens", request.options.tokens, "how many tokens to make")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--seed", request.options.seed, "another seed gives another text");
  app.add_option("--temperature", request.options.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--top-k", request.options.top_k, "choose among so many; 0: all");
  app.add_option("--device", request.device, "cpu (the default), cuda or cuda:N")
      ->envname("RUBATO_DEVICE");
  app.add_option("--isa", request.isa, "of the CPU: auto, sse41, avx2 or avx512_core");
  CLI11_PARSE(app, argc, argv);
  const rubato::Status done = rubato::worker::run(request);
  if (done.ok()) return 0;
  std::cerr << "rubato-generate: " << done.error().what() << "\n";
  return 1;
}
