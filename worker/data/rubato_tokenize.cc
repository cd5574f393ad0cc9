// rubato-tokenize: turns text into a token file: bytes, or the tokens of a tokenizer.json; an
// end-of-text token after each input.
//   rubato-tokenize --out /data/kjv.tok bible.txt
//   rubato-tokenize --tokenizer /models/llama/tokenizer.json --out /data/kjv.tok bible.txt
//   bible -f 'gen1:1-rev22:21' | rubato-tokenize --out /data/kjv.tok
#include "common/clock.h"
#include "common/files.h"
#include "common/standard_output.h"
#include "common/version.h"
#include "common/words.h"
#include "worker/backend/digest.h"
#include "worker/data/json_tokenizer.h"
#include "worker/data/token_file.h"
#include "worker/data/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

constexpr std::size_t kPieceBytes = 1u << 20;
// Of a text that must be encoded whole: some forty times its size is needed in memory.
constexpr std::size_t kWholeBytesMax = 256u << 20;

constexpr const char* kOtherWay =
    ". Make the token file with the tokenizers package, in Megatron-LM's form (docs/models.md); "
    "training reads it as it is";

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

struct Request {
  std::vector<std::string> inputs = {"-"};
  std::string output;
  std::string tokenizer;  // a tokenizer.json, or its folder; empty: bytes
  std::string end;        // the token after each input; empty: the tokenizer's own
};

// Either tokenizer, and what ends a text in it.
struct Encoder {
  std::optional<JsonTokenizer> json;
  std::int32_t end = ByteTokenizer::kEndOfText;

  std::uint64_t vocabulary() const {
    return static_cast<std::uint64_t>(json ? json->vocabulary() : ByteTokenizer::kVocabulary);
  }
  std::vector<std::int32_t> encode(std::string_view text) const {
    return json ? json->encode(text) : ByteTokenizer().encode(text);
  }
  std::size_t whole_part(std::string_view text, std::size_t searched) const {
    return json ? json->whole_part(text, searched) : text.size();
  }
};

Result<Encoder> make_encoder(FileSystem& files, const Request& request) {
  Encoder encoder;
  if (request.tokenizer.empty() && !request.end.empty()) return end_without_tokenizer();
  if (request.tokenizer.empty()) return encoder;
  auto opened = JsonTokenizer::open(files, request.tokenizer);
  if (!opened.ok() && opened.error().reason() == kUnsupportedTokenizer)
    return Error(Code::kInvalid, opened.error().what() + kOtherWay);
  TRY(encoder.json, std::move(opened));
  const auto end = encoder.json->end_of_text(request.end);
  if (!end.ok()) return end.error().in(request.tokenizer);
  encoder.end = *end;
  return encoder;
}

// One line on a terminal, written anew: bytes read, tokens, and how long the rest will take.
class Progress {
 public:
  explicit Progress(std::uint64_t total)
      : total_(total), begun_(clock_.now()), shows_(isatty(STDERR_FILENO) != 0) {}
  void add(std::uint64_t bytes, std::uint64_t tokens) {
    done_ += bytes;
    if (!shows_) return;
    const double seconds = std::chrono::duration<double>(clock_.now() - begun_).count();
    std::string line =
        fmt::format("\r{:.1f} MB, {}", static_cast<double>(done_) / 1e6, counted(tokens, "token"));
    if (total_ > 0 && done_ > 0 && total_ >= done_)
      line +=
          fmt::format(", {:.0f} %, ETA {:.0f} s  ",
                      100 * static_cast<double>(done_) / static_cast<double>(total_),
                      seconds * static_cast<double>(total_ - done_) / static_cast<double>(done_));
    std::cerr << line << std::flush;
  }
  void clear() const {
    if (shows_) std::cerr << "\r\x1b[K";
  }

 private:
  SystemClock clock_;
  std::uint64_t total_, done_ = 0;
  MonoTime begun_;
  bool shows_;
};

Status encode_file(std::FILE* file, const std::string& name, const Encoder& encoder,
                   TokenFileWriter& writer, Progress& progress) {
  std::string piece(kPieceBytes, '\0'), left;
  std::size_t searched = 0;  // bytes of `left` that have no place to cut
  for (bool is_last = false; !is_last;) {
    const std::size_t n = std::fread(piece.data(), 1, piece.size(), file);
    is_last = n < piece.size();
    left.append(piece, 0, n);
    const std::size_t whole = is_last ? left.size() : encoder.whole_part(left, searched);
    if (whole == 0 && left.size() > kWholeBytesMax)
      return Error(Code::kExhausted, name + ": this tokenizer must see a text whole, and takes " +
                                         std::to_string(kWholeBytesMax >> 20) +
                                         " MiB at most: split the file");
    TRY_OK(writer.append(encoder.encode(std::string_view(left).substr(0, whole))));
    left.erase(0, whole);
    searched = left.size();
    progress.add(n, writer.count());
  }
  if (std::ferror(file) != 0) return Error(Code::kUnavailable, "reading " + name + " failed");
  return writer.append({&encoder.end, 1});
}

Status tokenize(const Request& request) {
  std::vector<std::string> read = request.inputs;
  std::ranges::replace(read, "-", "/dev/stdin");
  if (!request.tokenizer.empty())
    read.insert(read.end(), {request.tokenizer, request.tokenizer + "/tokenizer.json"});
  TRY_OK(check_written(request.output, read));
  PosixFileSystem files;
  TRY(const Encoder encoder, make_encoder(files, request));
  TRY(auto writer, TokenFileWriter::create(files, request.output, encoder.vocabulary()));
  std::uint64_t total = 0;
  for (const std::string& input : request.inputs)
    if (const auto about = files.stat(input); input != "-" && about.ok()) total += about->size;
  Progress progress(total);
  for (const std::string& input : request.inputs) {
    const std::unique_ptr<std::FILE, CloseFile> file(
        input == "-" ? stdin : std::fopen(input.c_str(), "rb"));
    if (!file) return Error(Code::kNotFound, "cannot read " + input);
    TRY_OK(encode_file(file.get(), input, encoder, writer, progress));
  }
  TRY_OK(writer.finish());
  TRY(const TokenFile file, TokenFile::open(files, request.output));
  progress.clear();
  std::cerr << request.output << ": " << counted(file.count(), "token") << " of "
            << counted(file.bytes_per_token(), "byte") << ", vocabulary " << file.vocabulary()
            << ", digest " << to_hex(file.digest()) << "\n";
  return ok();
}

int run_command(int argc, char** argv) {
  CLI::App app(
      "Turns text into a token file, by bytes or by a tokenizer.json, and an end-of-text token "
      "after each input.");
  app.set_version_flag("--version", version_of("rubato-tokenize"));
  Request request;
  app.add_option("inputs", request.inputs, "text files, in order; - is standard input")
      ->expected(-1);
  app.add_option("-o,--out", request.output, "the token file to write")->required();
  app.add_option("-t,--tokenizer", request.tokenizer,
                 "a tokenizer.json, or a folder that has one; without it a token is a byte");
  app.add_option("--end", request.end, "the token that ends a text");
  CLI11_PARSE(app, argc, argv);
  const Status done = tokenize(request);
  if (done.ok()) return 0;
  std::cerr << "rubato-tokenize: " << done.error().what() << "\n";
  return 1;
}

}  // namespace
}  // namespace rubato::worker

int main(int argc, char** argv) {
  return rubato::run_printing("rubato-tokenize",
                              [&] { return rubato::worker::run_command(argc, argv); });
}
