// `rubatoctl local …` and `rubatoctl node …`.
#pragma once

#include "tools/rubatoctl/local/cluster.h"
#include "tools/rubatoctl/local/data.h"
#include "tools/rubatoctl/session.h"

#include <optional>
#include <string>
#include <vector>

namespace rubato::ctl {

// Folder of this program, where its brothers are.
std::string program_folder();
// A folder of the source tree, or as it was installed beside this program.
std::string shared_folder(const std::string& name);
// `given`, or crds/ beside an installed program, or that of the source tree. kNotFound says so.
Result<std::string> crds_folder(const std::string& given);

// " --state DIR" for the commands that are told to people; empty for the default folder.
std::string state_words(const std::string& state);

// GPUs of this machine for new nodes.
struct GpuChoice {
  std::string wanted;  // as localnode::choose_gpus() takes it; empty: none
  localnode::GpuPaths paths;
};

struct UpOptions {
  std::string state;
  std::string crds;
  std::optional<int> nodes;  // two; one where GPUs are asked for
  int slots = 1;
  GpuChoice gpus;
};
Status local_up(Executor& executor, const UpOptions& options);
Status local_down(Executor& executor, const std::string& state, bool purge,
                  std::chrono::seconds grace);
Status local_status(Executor& executor, const std::string& state);
// Texts for jobs, as tokens in a claim; without any, the example's.
Status local_data(Executor& executor, const std::string& state,
                  const std::vector<std::string>& texts, const DataPlace& place);

Status node_add(Executor& executor, const std::string& state, const std::string& name,
                std::optional<int> slots, const GpuChoice& gpus);
Status node_kill(Executor& executor, const std::string& state, const std::string& name);
// All nodes, of any cluster, and when each gave its last sign of life.
Status node_list(Session& session);
// The table's text, by the Leases of the nodes and all pods. Pure.
std::string nodes_text(const std::vector<json::Value>& nodes,
                       const std::vector<json::Value>& leases, const std::vector<json::Value>& pods,
                       WallTime now);

}  // namespace rubato::ctl
