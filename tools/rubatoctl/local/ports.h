// Which addresses of this machine are free. Real sockets.
#pragma once

#include "common/result.h"

#include <string>
#include <vector>

namespace rubato::ctl {

bool can_listen(const std::string& ip, int port);
// A port of 127.0.0.1 that nobody listens on now.
Result<int> free_port();
// Of the node of this number.
std::string node_address(int network, int number);
// Whether nodes of these numbers find their addresses free.
bool can_serve(int network, const std::vector<int>& numbers);
// The second byte x of a network 127.x.0.0/16 in which no node answers, from 77 on.
Result<int> free_network();

}  // namespace rubato::ctl
