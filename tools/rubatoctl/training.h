// Commands on what a job learns: logs, loss, top, generate.
#pragma once

#include "tools/rubatoctl/session.h"

#include <string>
#include <vector>

namespace rubato::ctl {

// Loss lines once by step, over all pods; other lines with their pod's name in front.
// With `follow`, while nothing is there to read, what the job waits for on standard error.
Status logs(Session& session, const std::string& job, bool follow);
// "job is Queued (WaitingForGPUs): …; waiting for its pods"; empty where it does not wait for them.
// Pure.
std::string waits_for_pods(const json::Value& job);
// output: csv, table, plot.
Status loss(Session& session, const std::string& job, const std::string& output);
// A live table of all jobs; on a terminal it is drawn anew each second until interrupted, also
// while the server is away.
Status top(Session& session, bool all_namespaces, bool once);
// The table's text. Pure.
std::string top_text(const std::vector<json::Value>& jobs, WallTime now, bool with_namespace);
// What draws `text` over all that a terminal of so many rows shows, as much of it as has room:
// nothing flickers, nothing scrolls. Pure.
std::string drawn(const std::string& text, std::size_t rows);

// Becomes the program of that name in the folder; returns only when it cannot.
Status become(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace rubato::ctl
