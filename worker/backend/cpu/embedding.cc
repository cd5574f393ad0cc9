#include "worker/backend/cpu/ops_internal.h"

namespace rubato::worker::cpu::RUBATO_KERNEL_ISA {

void embed_forward(std::int64_t rows, std::int64_t length, std::int64_t c,
                   const std::int32_t* tokens, const float* token_table,
                   const float* position_table, float* __restrict out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* token = token_table + tokens[r] * c;
    float* to = out + r * c;
    if (position_table == nullptr) {
      __builtin_memcpy(to, token, static_cast<std::uint64_t>(c) * sizeof(float));
      continue;
    }
    const float* position = position_table + (r % length) * c;
    for (std::int64_t i = 0; i < c; ++i) to[i] = token[i] + position[i];
  }
}

// The first sequence's rows are taken over, those of the others added in their order.
static void add_positions(std::int64_t rows, std::int64_t length, std::int64_t c, const float* dout,
                          float* __restrict dpositions) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* from = dout + r * c;
    float* to = dpositions + (r % length) * c;
    if (r < length)
      for (std::int64_t i = 0; i < c; ++i) to[i] = from[i];
    else
      for (std::int64_t i = 0; i < c; ++i) to[i] += from[i];
  }
}

// Rows are bucketed by token (a counting sort keeps token order inside a bucket); each bucket is
// summed in registers' reach and added to the table once: (input) + (what the head left there).
void embed_backward(std::int64_t rows, std::int64_t length, std::int64_t c, std::int64_t vocabulary,
                    const std::int32_t* tokens, const float* dout, std::int32_t* workspace,
                    float* __restrict dtokens, float* __restrict dpositions) {
  std::int32_t* starts = workspace;               // vocabulary + 1
  std::int32_t* order = starts + vocabulary + 1;  // rows
  for (std::int64_t t = 0; t <= vocabulary; ++t) starts[t] = 0;
  for (std::int64_t r = 0; r < rows; ++r) starts[tokens[r] + 1] += 1;
  for (std::int64_t t = 0; t < vocabulary; ++t) starts[t + 1] += starts[t];
  for (std::int64_t r = 0; r < rows; ++r) order[starts[tokens[r]]++] = static_cast<std::int32_t>(r);
  // Each start has moved to the end of its bucket, which is the start of the next.
  constexpr std::int64_t kTile = 64;
  float sum[kTile];
  for (std::int64_t t = 0; t < vocabulary; ++t) {
    const std::int32_t begin = t == 0 ? 0 : starts[t - 1];
    const std::int32_t end = starts[t];
    if (begin == end) continue;
    for (std::int64_t i = 0; i < c; i += kTile) {
      const std::int64_t n = c - i < kTile ? c - i : kTile;
      for (std::int64_t k = 0; k < n; ++k) sum[k] = 0.0f;
      for (std::int32_t o = begin; o < end; ++o) {
        const float* from = dout + order[o] * c + i;
        for (std::int64_t k = 0; k < n; ++k) sum[k] += from[k];
      }
      float* to = dtokens + t * c + i;
      for (std::int64_t k = 0; k < n; ++k) to[k] = sum[k] + to[k];
    }
  }
  if (dpositions != nullptr) add_positions(rows, length, c, dout, dpositions);
}

}  // namespace rubato::worker::cpu::RUBATO_KERNEL_ISA
