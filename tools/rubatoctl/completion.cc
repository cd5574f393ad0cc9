#include "tools/rubatoctl/completion.h"

#include <algorithm>
#include <numeric>

#include <fmt/core.h>

namespace rubato::ctl {

namespace {

// Levenshtein's, a row at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t k = 1; k <= b.size(); ++k) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[k - 1] ? 0 : 1);
      diagonal = row[k];
      row[k] = std::min({replaced, row[k] + 1, row[k - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_word(std::string_view to, const std::vector<std::string>& words) {
  std::string nearest;
  std::size_t least = std::min<std::size_t>(to.size(), 3);  // at least as many are none
  for (const std::string& word : words)
    if (const std::size_t distance = edit_distance(to, word); distance < least) {
      least = distance;
      nearest = word;
    }
  return nearest;
}

std::string bash_completion(const CommandWords& words) {
  std::string text =
      "# bash completion for rubatoctl: source <(rubatoctl completion bash)\n"
      "declare -gA _rubatoctl_words=(\n";
  for (const auto& [path, follow] : words) {
    text += fmt::format("  [\"_{}\"]=\"", path);
    for (std::size_t i = 0; i < follow.size(); ++i) text += (i > 0 ? " " : "") + follow[i];
    text += "\"\n";
  }
  return text + R"(
)
_rubatoctl() {
  local current=${COMP_WORDS[COMP_CWORD]} path= word i names=
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    [[ $word == -* ]] && continue
    [[ -v _rubatoctl_words["_${path:+$path }$word"] ]] && path="${path:+$path }$word"
  done
  if [[ $current != -* ]]; then
    case $path in
      logs | loss | suspend | resume | scale | wait)
        names=$(rubatoctl get tj -o name 2>/dev/null | sed 's|.*/||') ;;
      "node kill" | "node drain" | "node cordon" | "node uncordon" | "node remove")
        names=$(rubatoctl get nodes -o name 2>/dev/null | sed 's|.*/||') ;;
      get | describe | delete)
        names="tj queues nodes pods pvc events"
        [[ ${COMP_WORDS[COMP_CWORD-1]} == "$path" ]] ||
          names=$(rubatoctl get "${COMP_WORDS[COMP_CWORD-1]}" -o name 2>/dev/null | sed 's|.*/||') ;;
      apply) compopt -o default ;;
      "completion") names=bash ;;
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "${_rubatoctl_words["_$path"]} $names" -- "$current")
}
complete -F _rubatoctl rubatoctl
)";
}

}  // namespace rubato::ctl
