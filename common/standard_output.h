// What a program printed has to arrive before the program may say that it succeeded.
#pragma once

#include <functional>

namespace rubato {

// Around all that main() does: the exit status that `run` returned, or 1 when anything that was
// printed to standard output got lost, writing to it threw, or there was not enough memory.
// Standard error says so then, once, unless the reader of a pipe has gone. Numbers of standard
// streams that were closed are taken first, so that no file or connection gets one and the
// program's words with it.
int run_printing(const char* program, const std::function<int()>& run);

}  // namespace rubato
