// Whether two runs ended as one: their step records and weights, byte by byte.
#pragma once

#include "common/result.h"

#include <string>
#include <vector>

namespace rubato::ctl {

struct FileVerdict {
  std::string file;
  bool equal = false;
  std::string first_hash;  // SHA-256, hex
  std::string second_hash;
  std::string difference;  // where, for people; empty when equal
};

// The newest checkpoint of each folder. kNotFound when one has none.
Result<std::vector<FileVerdict>> compare_checkpoints(const std::string& first,
                                                     const std::string& second);
// The folder of the newest checkpoint, named by LATEST.
Result<std::string> newest_checkpoint(const std::string& folder);

}  // namespace rubato::ctl
