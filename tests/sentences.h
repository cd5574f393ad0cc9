// Mistakes in sentences that people read: "1 GPUs are free", "1 ready workers", "2, 1 are free".
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace rubato {

// The first place where one thing is spoken of as many are; empty: there is none.
inline std::string wrong_number(std::string_view text) {
  constexpr std::array<std::string_view, 26> kNouns{
      "GPUs",    "nodes",    "pods",   "workers",       "steps",      "jobs",    "members",
      "seconds", "bytes",    "tokens", "objects",       "failures",   "records", "restarts",
      "samples", "volumes",  "claims", "rounds",        "replicas",   "hours",   "minutes",
      "others",  "attempts", "queues", "micro-batches", "checkpoints"};
  constexpr std::array<std::string_view, 3> kVerbs{"are", "were", "have"};
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  };
  const auto word_at = [&](std::size_t at) {
    std::size_t end = at;
    while (end < text.size() && is_letter(text[end])) ++end;
    return text.substr(at, end - at);
  };
  const auto is_in = [](const auto& words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  for (std::size_t at = text.find("1 "); at != std::string_view::npos;
       at = text.find("1 ", at + 1)) {
    const bool is_whole = at == 0 || text[at - 1] == ' ' || text[at - 1] == '(';
    if (!is_whole) continue;
    const std::string_view next = word_at(at + 2);
    const std::size_t end = at + 2 + next.size();
    const bool goes_on = !next.empty() && end + 1 < text.size() && text[end] == ' ';
    const bool is_wrong =
        is_in(kVerbs, next) || is_in(kNouns, next) || (goes_on && is_in(kNouns, word_at(end + 1)));
    if (is_wrong) return std::string(text.substr(at, 40));
  }
  return "";
}

}  // namespace rubato
