// The simple commands of a text that a shell is to run. Only what is certain counts: from a here
// document, an array, quotes in ${ }, backquotes in double ones, $'…' or a `case` in brackets on
// nothing more is read. Functions and aliases count as programs of their names. Private to this
// folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rubato::worker {

// The words of each, without quotes and comments, in the order in which the commands end. Variables
// stay as they are written. Words of the shell that lead a command (`if`, `then`, `do` …) are left
// out; what is in quotes is no command, but for that in $( ).
std::vector<std::vector<std::string>> simple_commands(std::string_view text);

}  // namespace rubato::worker
