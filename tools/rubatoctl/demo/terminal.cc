#include "tools/rubatoctl/demo/terminal.h"

#include <cstdio>

#include <fmt/core.h>
#include <unistd.h>

namespace rubato::ctl {
namespace {

constexpr auto kRedraw = 200ms;
constexpr auto kLineEvery = 10s;  // where lines cannot be drawn anew

}  // namespace

std::string drawn_over(const std::string& line) { return "\r\x1b[K\x1b[?7l" + line + "\x1b[?7h"; }

Terminal::Terminal(Executor& executor)
    : executor_(executor), start_(executor.now()), is_terminal_(::isatty(STDOUT_FILENO) != 0) {}

double Terminal::seconds() const {
  return std::chrono::duration<double>(executor_.now() - start_).count();
}

void Terminal::clear() {
  if (has_line_) std::fputs("\r\x1b[K", stdout);
  has_line_ = false;
}

void Terminal::heading(const std::string& text) {
  clear();
  fmt::print("\n{}== {} =={}\n", is_terminal_ ? "\x1b[1m" : "", text,
             is_terminal_ ? "\x1b[0m" : "");
  std::fflush(stdout);
}

void Terminal::say(const std::string& text) {
  clear();
  fmt::print("[{:5.1f}s] {}\n", seconds(), text);
  std::fflush(stdout);
}

void Terminal::print(const std::string& block) {
  clear();
  std::fputs(block.c_str(), stdout);
  std::fflush(stdout);
}

void Terminal::progress(const std::string& text, bool is_first) {
  if (!is_first && executor_.now() < next_progress_) return;
  next_progress_ = executor_.now() + (is_terminal_ ? Duration(kRedraw) : Duration(kLineEvery));
  if (!is_terminal_) return say(text);
  std::fputs(drawn_over(fmt::format("[{:5.1f}s] {}", seconds(), text)).c_str(), stdout);
  std::fflush(stdout);
  has_line_ = true;
}

}  // namespace rubato::ctl
