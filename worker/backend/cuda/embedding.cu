#include "worker/backend/cuda/arithmetic.cuh"
#include "worker/backend/cuda/launch.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    embed_forward_kernel(std::int64_t length, std::int64_t c,
                         const std::int32_t* __restrict__ tokens,
                         const float* __restrict__ token_table,
                         const float* __restrict__ position_table, float* __restrict__ out) {
  const std::int64_t row = blockIdx.x;
  const float* token = token_table + tokens[row] * c;
  if (position_table == nullptr) {
    for (std::int64_t i = threadIdx.x; i < c; i += kThreads) out[row * c + i] = token[i];
    return;
  }
  const float* position = position_table + row % length * c;
  for (std::int64_t i = threadIdx.x; i < c; i += kThreads)
    out[row * c + i] = token[i] + position[i];
}

// A stable sort of the rows by token: the place of a row is the number of rows before it. Each row
// looks at all others, rows^2 comparisons: 0.1 ms for 8 192 rows, and no atomics.
__global__ void __launch_bounds__(kThreads)
    sort_rows(std::int32_t rows, const std::int32_t* __restrict__ tokens,
              std::int32_t* __restrict__ sorted, std::int32_t* __restrict__ order) {
  __shared__ std::int32_t others[kThreads];
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const std::int32_t token = row < rows ? tokens[row] : 0;
  std::int32_t before = 0;
  for (std::int32_t first = 0; first < rows; first += kThreads) {
    const std::int32_t at = first + static_cast<std::int32_t>(threadIdx.x);
    __syncthreads();
    others[threadIdx.x] = at < rows ? tokens[at] : INT32_MAX;
    __syncthreads();
#pragma unroll 8
    for (std::int32_t k = 0; k < kThreads; ++k)
      before += others[k] < token || (others[k] == token && first + k < row) ? 1 : 0;
  }
  if (row >= rows) return;
  sorted[before] = token;
  order[before] = row;
}

// The first of the places from `begin` on that holds another token.
__device__ std::int32_t end_of_token(const std::int32_t* sorted, std::int32_t begin,
                                     std::int32_t rows) {
  const std::int32_t token = sorted[begin];
  std::int32_t low = begin + 1, high = rows;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (sorted[middle] == token)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// A block has one place of the sorted rows; the first place of a token does all its work.
__global__ void __launch_bounds__(kThreads)
    add_tokens(std::int32_t rows, std::int64_t c, const std::int32_t* __restrict__ sorted,
               const std::int32_t* __restrict__ order, const float* __restrict__ dout,
               float* __restrict__ dtokens) {
  const auto begin = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t token = sorted[begin];
  if (begin > 0 && sorted[begin - 1] == token) return;
  const std::int32_t end = end_of_token(sorted, begin, rows);
  for (std::int64_t i = threadIdx.x; i < c; i += kThreads) {
    float sum = 0.0f;
#pragma unroll 8
    for (std::int32_t o = begin; o < end; ++o) sum = sum + dout[order[o] * c + i];
    float* to = dtokens + token * c + i;
    *to = sum + *to;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_positions(std::int64_t rows, std::int64_t size, const float* __restrict__ dout,
                  float* __restrict__ dpositions) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= size || at >= rows) return;
  float sum = dout[at];
  for (std::int64_t i = at + size; i < rows; i += size) sum = sum + dout[i];
  dpositions[at] = sum;
}

}  // namespace

void embed_forward(RawStream stream, std::int64_t rows, std::int64_t length, std::int64_t c,
                   const std::int32_t* tokens, const float* token_table,
                   const float* position_table, float* out) {
  if (rows == 0) return;
  Grid{stream, static_cast<unsigned>(rows), kThreads}.run(embed_forward_kernel, length, c, tokens,
                                                          token_table, position_table, out);
}

void embed_backward(RawStream stream, std::int64_t rows, std::int64_t length, std::int64_t c,
                    const std::int32_t* tokens, const float* dout, std::int32_t* workspace,
                    float* dtokens, float* dpositions) {
  if (rows == 0) return;
  std::int32_t* sorted = workspace;
  std::int32_t* order = workspace + rows;
  const auto count = static_cast<std::int32_t>(rows);
  Grid{stream, blocks_for(rows, kThreads), kThreads}.run(sort_rows, count, tokens, sorted, order);
  Grid{stream, static_cast<unsigned>(rows), kThreads}.run(add_tokens, count, c, sorted, order, dout,
                                                          dtokens);
  if (dpositions == nullptr) return;
  Grid{stream, blocks_for(length * c, kThreads), kThreads}.run(add_positions, rows * c, length * c,
                                                               dout, dpositions);
}

}  // namespace rubato::worker::cuda
