// Completion for bash, generated from the commands themselves.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace rubato::ctl {

// "" and "local up" … to the words that may follow: subcommands and options.
using CommandWords = std::map<std::string, std::vector<std::string>>;
// The script to source. Names of jobs and nodes are asked from the cluster. Pure.
std::string bash_completion(const CommandWords& words);

}  // namespace rubato::ctl
