#include "common/command.h"

#include "common/json.h"

#include <cstdlib>

#include <fmt/core.h>

namespace rubato {

Result<std::vector<std::string>> parse_command(std::string_view text) {
  const auto list = json::parse(text);
  std::vector<std::string> words;
  if (list.ok())
    for (const json::Value& word : list->items())
      if (word.is_string()) words.push_back(word.string_or(""));
  if (!list.ok() || words.empty() || words.size() != list->size())
    return Error(Code::kInvalid, "no JSON list of words: " + std::string(text));
  return words;
}

std::vector<char*> exec_words(std::vector<std::string>& words) {
  std::vector<char*> all;
  all.reserve(words.size() + 1);
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

std::function<std::string(const std::string&)> number_from(double least, double most) {
  return [least, most](const std::string& text) -> std::string {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0' && number >= least && number <= most) return "";
    return fmt::format("{}: expected a number from {} to {}", text, least, most);
  };
}

}  // namespace rubato
