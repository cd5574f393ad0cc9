#include "worker/script/shell_text.h"

#include <algorithm>
#include <array>
#include <utility>

namespace rubato::worker {
namespace {

constexpr std::size_t kDepthMost = 16;  // of brackets and quotes; what is deeper is not read
constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kCommandEnds = "\n;&|";
constexpr std::string_view kOperators = "\n&|()<>";
constexpr std::array<std::string_view, 9> kLeading = {"if",    "then",  "else", "elif", "do",
                                                      "while", "until", "!",    "{"};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::vector<std::vector<std::string>> commands() && {
    read_until('\0');
    return std::move(commands_);
  }

 private:
  struct Command {
    std::vector<std::string> words;
    std::string word;
    bool has_word = false;  // an empty one, perhaps: ''
  };

  void stop() { at_ = text_.size(); }
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void end_word(Command& command) {
    if (depth_ > 1 && command.words.empty() && command.word == "case") stop();  // its ) end nothing
    const bool leads =
        command.words.empty() && std::ranges::find(kLeading, command.word) != kLeading.end();
    if (command.has_word && !leads) command.words.push_back(command.word);
    command.word.clear();
    command.has_word = false;
  }

  void end_command(Command& command) {
    end_word(command);
    if (!command.words.empty()) commands_.push_back(std::exchange(command.words, {}));
  }

  // Up to the bracket that ends it; '\0': to the end of the text.
  void read_until(char end) {
    if (++depth_ > kDepthMost) stop();
    Command command;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == end && !is_test(command)) break;
      read(c, command);
    }
    end_command(command);
    --depth_;
  }

  // Of `[[ … ]]`, where operators and brackets end nothing.
  static bool is_test(const Command& command) {
    return !command.words.empty() && command.words.front() == "[[" &&
           command.words.back() != "]]" && command.word != "]]";
  }

  void read(char c, Command& command) {
    const bool redirects = command.word.ends_with('>') || command.word.ends_with('<');
    const bool is_operator = kOperators.find(c) != std::string_view::npos;
    if (kBlanks.find(c) != std::string_view::npos) return end_word(command);
    if (is_operator && is_test(command)) return end_word(command);
    if (c == '&' && redirects) return add(command, c);  // 2>&1
    if (kCommandEnds.find(c) != std::string_view::npos) return end_command(command);
    switch (c) {
      case '#':
        return command.has_word ? add(command, c) : skip_comment();
      case '\'':
        return read_quoted(command);
      case '"':
        command.has_word = true;
        return read_whole('"', "`", command);
      case '$':
        return read_dollar(command);
      case '\\':
        return read_escaped(command);
      case '<':
        return next() == '<' ? read_here() : add(command, c);
      case '(':
        return read_bracket(command);
      case ')':  // that none has begun: of a pattern of `case`
        end_word(command);
        command.words.clear();
        return;
      case '`':
        add(command, c);
        return read_until('`');
      default:
        return add(command, c);
    }
  }

  static void add(Command& command, char c) {
    command.word += c;
    command.has_word = true;
  }

  void skip_comment() { at_ = std::min(text_.find('\n', at_), text_.size()); }

  // $'…' has escapes of its own.
  void read_quoted(Command& command) {
    if (command.word.ends_with('$')) return stop();
    command.has_word = true;
    const std::size_t end = std::min(text_.find('\'', at_), text_.size());
    command.word += text_.substr(at_, end - at_);
    at_ = std::min(end + 1, text_.size());
  }

  // Of "…" and ${…}: whatever is inside is of the word, but for commands in $(…). What has one of
  // `unread` is not read.
  void read_whole(char end, std::string_view unread, Command& command) {
    if (++depth_ > kDepthMost) stop();
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == end) break;
      if (unread.find(c) != std::string_view::npos) {
        stop();
      } else if (c == '$') {
        read_dollar(command);
      } else if (c == '\\') {
        read_escaped(command);
      } else {
        add(command, c);
      }
    }
    --depth_;
  }

  void read_dollar(Command& command) {
    add(command, '$');
    const char bracket = next();
    if (bracket != '(' && bracket != '{') return;
    ++at_;
    if (bracket == '(') return read_until(')');
    add(command, '{');
    read_whole('}', "`'\"", command);
    add(command, '}');
  }

  void read_escaped(Command& command) {
    if (at_ == text_.size()) return;
    const char c = text_[at_++];
    if (c != '\n') add(command, c);
  }

  // Behind `<<<` is a word, behind `<<` are lines that are no commands.
  void read_here() {
    if (!text_.substr(at_).starts_with("<<")) return stop();
    at_ += 2;
  }

  // Of commands in a word or in a shell below, or of a function. Any other begins an array or a
  // pattern.
  void read_bracket(Command& command) {
    const bool is_part = command.word.ends_with('<') || command.word.ends_with('>');
    const bool is_first = command.words.empty() && !command.has_word;
    if (is_part || is_first) return read_until(')');
    if (next() != ')') return stop();
    ++at_;
    end_command(command);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
  std::vector<std::vector<std::string>> commands_;
};

}  // namespace

std::vector<std::vector<std::string>> simple_commands(std::string_view text) {
  return Reader(text).commands();
}

}  // namespace rubato::worker
