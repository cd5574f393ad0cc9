// Words of the command line: completion for bash, generated from the commands themselves, and the
// nearest to one that is unknown.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::ctl {

// "" and "local up" … to the words that may follow: subcommands and options.
using CommandWords = std::map<std::string, std::vector<std::string>>;
// The script to source. Names of jobs and nodes are asked from the cluster. Pure.
std::string bash_completion(const CommandWords& words);

// The word with the fewest letters that are other, too many or missing; empty: none is near. Pure.
std::string nearest_word(std::string_view to, const std::vector<std::string>& words);

}  // namespace rubato::ctl
