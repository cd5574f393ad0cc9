// Text for jobs of a local cluster: tokens in the folder that plays a claim.
#pragma once

#include "tools/rubatoctl/local/cluster.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace rubato::ctl {

// Where a job reads it, and of which tokens it is. The defaults are those of examples/gpt-kjv.yaml.
struct DataPlace {
  std::string ns = "default";
  std::string claim = "kjv-data";
  std::string file = "kjv.tokens";
  std::string tokenizer;  // a tokenizer.json, or its folder; empty: a token is a byte
};

// None leads out of the folder of claims: namespace and claim are names as
// Kubernetes has them, the file is one without a folder. kInvalid says which is not.
Status check_place(const DataPlace& place);

// Tokens by rubato-tokenize, end-of-text after each file; what was there is replaced. Answers the
// bytes of text. kInvalid or kNotFound say which file cannot be read, or check_place()'s errors.
Result<std::uint64_t> put_texts(Executor& executor, const LocalCluster& cluster,
                                const std::vector<std::string>& texts, const DataPlace& place,
                                const std::function<bool()>& should_stop);
// The King James Bible, of Debian's package bible-kjv: as tokens, or as it is. kNotFound names the
// package.
Result<std::uint64_t> put_bible(Executor& executor, const LocalCluster& cluster,
                                const DataPlace& place, const std::function<bool()>& should_stop);
Result<std::uint64_t> put_plain_bible(Executor& executor, const LocalCluster& cluster,
                                      const DataPlace& place,
                                      const std::function<bool()>& should_stop);

}  // namespace rubato::ctl
