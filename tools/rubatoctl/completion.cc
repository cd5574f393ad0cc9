#include "tools/rubatoctl/completion.h"

#include <fmt/core.h>

namespace rubato::ctl {

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
