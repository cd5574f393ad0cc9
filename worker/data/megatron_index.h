// The index of a Megatron-LM data set: NAME.idx beside NAME.bin, which is tokens alone.
//   char[9] "MMIDIDX\0\0", u64 version (1), u8 type of a token, u64 sequences s, u64 documents d,
//   i32[s] their lengths, i64[s] where they begin in NAME.bin, i64[d] the first sequence of each
#pragma once

#include "common/files.h"
#include "common/result.h"

#include <cstdint>
#include <string>

namespace rubato::worker {

struct MegatronIndex {
  int width = 0;  // bytes per token: 1, 2 or 4
  std::uint64_t tokens = 0;
};
// "/data/x.idx" for "/data/x.bin"; empty for a name that does not end so.
std::string megatron_index_of(const std::string& tokens);
// kInvalid: no such index, a type of tokens that is not read, or sequences that are not side by
// side in the file of tokens. Reads it whole, in pieces.
Result<MegatronIndex> read_megatron_index(FileSystem& files, const std::string& path);

}  // namespace rubato::worker
