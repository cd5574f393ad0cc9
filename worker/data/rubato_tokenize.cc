// rubato-tokenize: turns text into a token file, one token per byte and an end-of-text token last.
//   rubato-tokenize --out /data/kjv.tok bible.txt
//   bible -f 'gen1:1-rev22:21' | rubato-tokenize --out /data/kjv.tok
#include "common/version.h"
#include "worker/backend/digest.h"
#include "worker/data/token_file.h"
#include "worker/data/tokenizer.h"

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <unistd.h>

namespace rubato::worker {
namespace {

constexpr std::size_t kPieceBytes = 1u << 20;

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

Status tokenize(const std::vector<std::string>& inputs, const std::string& output) {
  PosixFileSystem files;
  const ByteTokenizer tokenizer;
  TRY(auto writer, TokenFileWriter::create(files, output, ByteTokenizer::kVocabulary));
  const bool show = isatty(STDERR_FILENO) != 0;
  std::string piece(kPieceBytes, '\0');
  for (const std::string& input : inputs) {
    const std::unique_ptr<std::FILE, CloseFile> file(
        input == "-" ? stdin : std::fopen(input.c_str(), "rb"));
    if (!file) return Error(Code::kNotFound, "cannot read " + input);
    for (;;) {
      const std::size_t n = std::fread(piece.data(), 1, piece.size(), file.get());
      TRY_OK(writer.append(tokenizer.encode(std::string_view(piece).substr(0, n))));
      if (show) std::cerr << "\r" << writer.count() << " tokens" << std::flush;
      if (n < piece.size()) break;
    }
    if (std::ferror(file.get()) != 0)
      return Error(Code::kUnavailable, "reading " + input + " failed");
    const std::int32_t end[] = {ByteTokenizer::kEndOfText};
    TRY_OK(writer.append(end));
  }
  TRY_OK(writer.finish());
  TRY(const TokenFile file, TokenFile::open(files, output));
  std::cerr << (show ? "\r" : "") << output << ": " << file.count() << " tokens of "
            << file.bytes_per_token() << " bytes, vocabulary " << file.vocabulary() << ", digest "
            << to_hex(file.digest()) << "\n";
  return ok();
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  CLI::App app("Turns text into a token file: one token per byte, end-of-text after each input.");
  app.set_version_flag("--version", rubato::version_of("rubato-tokenize"));
  std::vector<std::string> inputs = {"-"};
  std::string output;
  app.add_option("inputs", inputs, "text files, in order; - is standard input")->expected(-1);
  app.add_option("-o,--out", output, "the token file to write")->required();
  CLI11_PARSE(app, argc, argv);
  const rubato::Status done = rubato::worker::tokenize(inputs, output);
  if (done.ok()) return 0;
  std::cerr << "rubato-tokenize: " << done.error().what() << "\n";
  return 1;
}
