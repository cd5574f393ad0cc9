// Causal attention without a matrix of probabilities (Dao et al. 2022, "FlashAttention"), in f32.
// The forward pass walks over tiles of keys with a running maximum and sum, and keeps for each row
// only lse = log sum_j exp(s_j). The backward pass makes the probabilities again, p = exp(s - lse):
//   dots = dout . out;  dv = p^T dout;  ds = p (dout v^T - dots) scale;  dq = ds k;  dk = ds^T q
// one kernel for dk and dv, one for dq, so that each sum belongs to one block and has one order.
//
// A block of 256 threads has a tile of 64 rows of one (sequence, head), and goes over tiles of 64
// others. Thread (tx, ty) of 16 x 16 has rows ty + 16 i and columns tx + 16 j of a tile of scores,
// and rows ty + 16 i of the output. Tiles lie in shared memory with rows of D + 4 floats: reads of
// four floats by neighbouring rows meet no bank twice. D is the size of a head rounded up; the rest
// is zero. Fused multiply-add is written out: it is part of this arithmetic.
#include "worker/backend/cuda/arithmetic.cuh"
#include "worker/backend/cuda/ops.h"

#include <cuda_runtime.h>

namespace rubato::worker::cuda {

namespace {

constexpr int kTile = 64;
constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;
constexpr int kRows = kTile / kSide;  // of a thread
constexpr int kScoreStride = kTile + 4;
constexpr int kScoreFloats = kTile * kScoreStride;

template <int D>
constexpr int kStride = D + 4;  // of a tile of rows of D elements
template <int D>
constexpr int kTileFloats = kTile * kStride<D>;

// Blocks on a multiprocessor that the registers are dealt for; shared memory allows no more.
template <int D>
constexpr int kBlocksWanted = D > 64 ? 1 : 2;

// Where one head of one sequence lies in the matrices of the model.
struct Head {
  std::int64_t hidden;  // columns of all heads
  std::int64_t qkv;     // of row 0's query; keys `hidden` on, values twice that
  std::int64_t out;     // of row 0
  std::int64_t scalar;  // of row 0 in lse and dots
};
__device__ __forceinline__ Head head_of(const AttentionOp& op) {
  const std::int64_t hidden = op.heads * op.head_size;
  const std::int64_t batch = blockIdx.z;
  const std::int64_t head = blockIdx.y;
  const std::int64_t rows = batch * op.length;  // before this sequence
  return {hidden, rows * 3 * hidden + head * op.head_size, rows * hidden + head * op.head_size,
          (batch * op.heads + head) * op.length};
}

// Rows first .. first + 63 of a matrix into a tile; what lies outside is zero.
template <int D>
__device__ __forceinline__ void fill_tile(float* tile, const float* from, std::int64_t row_stride,
                                          std::int64_t first, const AttentionOp& op) {
  for (int at = threadIdx.x; at < kTile * D; at += kThreads) {
    const int row = at / D, column = at % D;
    const bool is_inside = first + row < op.length && column < op.head_size;
    tile[row * kStride<D> + column] = is_inside ? from[(first + row) * row_stride + column] : 0.0f;
  }
}

// scores[i][j] = row (ty + 16 i) of a . row (tx + 16 j) of b, over D elements.
template <int D>
__device__ __forceinline__ void make_scores(const float* a, const float* b,
                                            float (&scores)[kRows][kRows]) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kRows; ++j) scores[i][j] = 0.0f;
#pragma unroll 1
  for (int d = 0; d < D; d += 4) {
    Pack<float, 4> left[kRows], right[kRows];
    for (int i = 0; i < kRows; ++i) left[i] = load<4>(a + (ty + kSide * i) * kStride<D> + d);
    for (int j = 0; j < kRows; ++j) right[j] = load<4>(b + (tx + kSide * j) * kStride<D> + d);
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kRows; ++j)
          scores[i][j] = fmaf(left[i].v[k], right[j].v[k], scores[i][j]);
  }
}

// A thread's part of an output tile: rows ty + 16 i, D / 16 columns each.
template <int D>
struct Part {
  static constexpr int kColumns = D / kSide;
  static constexpr bool kWide = kColumns % 4 == 0;
  float v[kRows][kColumns];

  __device__ __forceinline__ static int column(int c) {
    const int tx = threadIdx.x % kSide;
    return kWide ? tx * 4 + c / 4 * (4 * kSide) + c % 4 : tx + kSide * c;
  }
  __device__ __forceinline__ void clear() {
    for (auto& row : v)
      for (float& x : row) x = 0.0f;
  }
  // += the tile of scores (64 x 64) times the tile of others (64 x D).
  __device__ __forceinline__ void add(const float* scores, const float* others) {
    const int ty = threadIdx.x / kSide;
#pragma unroll 1
    for (int k = 0; k < kTile; k += 4) {
      Pack<float, 4> left[kRows];
      for (int i = 0; i < kRows; ++i)
        left[i] = load<4>(scores + (ty + kSide * i) * kScoreStride + k);
      for (int n = 0; n < 4; ++n) {
        float right[kColumns];
        read_columns(others + (k + n) * kStride<D>, right);
        for (int i = 0; i < kRows; ++i)
          for (int c = 0; c < kColumns; ++c) v[i][c] = fmaf(left[i].v[n], right[c], v[i][c]);
      }
    }
  }
  __device__ __forceinline__ void write(float* to, std::int64_t row_stride, std::int64_t first,
                                        const AttentionOp& op) const {
    const int ty = threadIdx.x / kSide;
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first + ty + kSide * i;
      if (row >= op.length) continue;
      for (int c = 0; c < kColumns; ++c)
        if (column(c) < op.head_size) to[row * row_stride + column(c)] = v[i][c];
    }
  }

 private:
  __device__ __forceinline__ static void read_columns(const float* row, float (&out)[kColumns]) {
    if constexpr (kWide) {
      for (int c = 0; c < kColumns; c += 4) {
        const Pack<float, 4> four = load<4>(row + column(c));
        for (int k = 0; k < 4; ++k) out[c + k] = four.v[k];
      }
    } else {
      for (int c = 0; c < kColumns; ++c) out[c] = row[column(c)];
    }
  }
};

// Over the 16 threads of one row.
template <class Join>
__device__ __forceinline__ float fold_row(float x, Join join) {
  for (int apart = kSide / 2; apart > 0; apart /= 2)
    x = join(x, __shfl_xor_sync(kAllLanes, x, apart));
  return x;
}

__device__ __forceinline__ void write_scores(float* tile, const float (&scores)[kRows][kRows]) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kRows; ++j)
      tile[(ty + kSide * i) * kScoreStride + tx + kSide * j] = scores[i][j];
}

// Lower than any score, and finite, so that differences of it are.
constexpr float kLowest = -1e30f;

// The running maximum and sum of a thread's rows.
struct Running {
  float highest[kRows];
  float sum[kRows];
  __device__ void clear() {
    for (int i = 0; i < kRows; ++i) {
      highest[i] = kLowest;
      sum[i] = 0.0f;
    }
  }
};

// Scores become exp(score - maximum), masked; what was summed before is scaled to the new maximum.
template <int D>
__device__ __forceinline__ void soften(float (&scores)[kRows][kRows], float scale,
                                       std::int64_t first_row, std::int64_t first_key,
                                       Running& running, Part<D>& part) {
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first_row + ty + kSide * i;
    float highest = running.highest[i];
    for (int j = 0; j < kRows; ++j) {
      const bool is_seen = first_key + tx + kSide * j <= row;
      scores[i][j] = is_seen ? scores[i][j] * scale : kLowest;
      highest = scores[i][j] > highest ? scores[i][j] : highest;
    }
    highest = fold_row(highest, [](float a, float b) { return a > b ? a : b; });
    float sum = 0.0f;
    for (int j = 0; j < kRows; ++j) {
      const bool is_seen = first_key + tx + kSide * j <= row;
      scores[i][j] = is_seen ? exp_of(scores[i][j] - highest) : 0.0f;
      sum = sum + scores[i][j];
    }
    sum = fold_row(sum, [](float a, float b) { return a + b; });
    const float kept = exp_of(running.highest[i] - highest);
    running.sum[i] = running.sum[i] * kept + sum;
    running.highest[i] = highest;
    for (float& x : part.v[i]) x = x * kept;
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksWanted<D>)
    forward_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                   float* __restrict__ lse, float* __restrict__ out) {
  extern __shared__ float shared[];
  float* queries = shared;
  float* keys = queries + kTileFloats<D>;
  float* values = keys + kTileFloats<D>;
  float* weights = values + kTileFloats<D>;
  const Head head = head_of(op);
  const std::int64_t stride = 3 * head.hidden;
  // Long rows first: the last blocks to run are short.
  const std::int64_t first = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kTile;
  fill_tile<D>(queries, qkv + head.qkv, stride, first, op);
  Running running;
  running.clear();
  Part<D> part;
  part.clear();
  for (std::int64_t key = 0; key <= first; key += kTile) {
    __syncthreads();  // the last tile has been read
    fill_tile<D>(keys, qkv + head.qkv + head.hidden, stride, key, op);
    fill_tile<D>(values, qkv + head.qkv + 2 * head.hidden, stride, key, op);
    __syncthreads();
    float scores[kRows][kRows];
    make_scores<D>(queries, keys, scores);
    soften<D>(scores, scale, first, key, running, part);
    write_scores(weights, scores);
    __syncthreads();
    part.add(weights, values);
  }
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first + ty + kSide * i;
    const float factor = 1.0f / running.sum[i];
    for (float& x : part.v[i]) x = x * factor;
    if (tx == 0 && row < op.length)
      lse[head.scalar + row] =
          running.highest[i] + static_cast<float>(log_of(static_cast<double>(running.sum[i])));
  }
  part.write(out + head.out, head.hidden, first, op);
}

// dots[row] = dout . out over a head; a warp a row.
__global__ void __launch_bounds__(kThreads)
    dots_kernel(AttentionOp op, const float* __restrict__ out, const float* __restrict__ dout,
                float* __restrict__ dots) {
  const std::int64_t at =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (at >= op.batch * op.heads * op.length) return;
  const std::int64_t row = at % op.length;
  const std::int64_t head = at / op.length % op.heads;
  const std::int64_t batch = at / op.length / op.heads;
  const std::int64_t base = ((batch * op.length + row) * op.heads + head) * op.head_size;
  float sum = 0.0f;
  for (std::int64_t i = threadIdx.x % kWarp; i < op.head_size; i += kWarp)
    sum = fmaf(out[base + i], dout[base + i], sum);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) dots[at] = sum;
}

// The probability of one score, and the gradient of that score before the scale.
__device__ __forceinline__ float probability(float score, float scale, float lse, bool is_seen) {
  return is_seen ? exp_of(score * scale - lse) : 0.0f;
}

// A block has a tile of keys and goes over the queries that see them. Scores are transposed: rows
// are keys.
template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksWanted<D>)
    backward_keys_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                         const float* __restrict__ lse, const float* __restrict__ dout,
                         const float* __restrict__ dots, float* __restrict__ dqkv) {
  extern __shared__ float shared[];
  float* keys = shared;
  float* values = keys + kTileFloats<D>;
  float* queries = values + kTileFloats<D>;
  float* gradients = queries + kTileFloats<D>;
  float* weights = gradients + kTileFloats<D>;
  const Head head = head_of(op);
  const std::int64_t stride = 3 * head.hidden;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  fill_tile<D>(keys, qkv + head.qkv + head.hidden, stride, first, op);
  fill_tile<D>(values, qkv + head.qkv + 2 * head.hidden, stride, first, op);
  Part<D> dkey, dvalue;
  dkey.clear();
  dvalue.clear();
  for (std::int64_t query = first; query < op.length; query += kTile) {
    __syncthreads();
    fill_tile<D>(queries, qkv + head.qkv, stride, query, op);
    fill_tile<D>(gradients, dout + head.out, head.hidden, query, op);
    __syncthreads();
    float p[kRows][kRows], ds[kRows][kRows];
    make_scores<D>(keys, queries, p);
    make_scores<D>(values, gradients, ds);
    for (int j = 0; j < kRows; ++j) {
      const std::int64_t row = query + tx + kSide * j;
      const bool is_row = row < op.length;
      const float row_lse = is_row ? lse[head.scalar + row] : 0.0f;
      const float dot = is_row ? dots[head.scalar + row] : 0.0f;
      for (int i = 0; i < kRows; ++i) {
        const bool is_seen = is_row && first + ty + kSide * i <= row;
        p[i][j] = probability(p[i][j], scale, row_lse, is_seen);
        ds[i][j] = p[i][j] * (ds[i][j] - dot) * scale;
      }
    }
    write_scores(weights, p);
    __syncthreads();
    dvalue.add(weights, gradients);
    __syncthreads();
    write_scores(weights, ds);
    __syncthreads();
    dkey.add(weights, queries);
  }
  dkey.write(dqkv + head.qkv + head.hidden, stride, first, op);
  dvalue.write(dqkv + head.qkv + 2 * head.hidden, stride, first, op);
}

// A block has a tile of queries and goes over the keys that they see.
template <int D>
__global__ void __launch_bounds__(kThreads, kBlocksWanted<D>)
    backward_queries_kernel(AttentionOp op, float scale, const float* __restrict__ qkv,
                            const float* __restrict__ lse, const float* __restrict__ dout,
                            const float* __restrict__ dots, float* __restrict__ dqkv) {
  extern __shared__ float shared[];
  float* queries = shared;
  float* gradients = queries + kTileFloats<D>;
  float* keys = gradients + kTileFloats<D>;
  float* values = keys + kTileFloats<D>;
  float* weights = values + kTileFloats<D>;
  const Head head = head_of(op);
  const std::int64_t stride = 3 * head.hidden;
  const std::int64_t first = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kTile;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  fill_tile<D>(queries, qkv + head.qkv, stride, first, op);
  fill_tile<D>(gradients, dout + head.out, head.hidden, first, op);
  float row_lse[kRows], dot[kRows];
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first + ty + kSide * i;
    row_lse[i] = row < op.length ? lse[head.scalar + row] : 0.0f;
    dot[i] = row < op.length ? dots[head.scalar + row] : 0.0f;
  }
  Part<D> dquery;
  dquery.clear();
  for (std::int64_t key = 0; key <= first; key += kTile) {
    __syncthreads();
    fill_tile<D>(keys, qkv + head.qkv + head.hidden, stride, key, op);
    fill_tile<D>(values, qkv + head.qkv + 2 * head.hidden, stride, key, op);
    __syncthreads();
    float p[kRows][kRows], ds[kRows][kRows];
    make_scores<D>(queries, keys, p);
    make_scores<D>(gradients, values, ds);
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first + ty + kSide * i;
      for (int j = 0; j < kRows; ++j) {
        const bool is_seen = row < op.length && key + tx + kSide * j <= row;
        p[i][j] = probability(p[i][j], scale, row_lse[i], is_seen);
        ds[i][j] = p[i][j] * (ds[i][j] - dot[i]) * scale;
      }
    }
    write_scores(weights, ds);
    __syncthreads();
    dquery.add(weights, keys);
  }
  dquery.write(dqkv + head.qkv, stride, first, op);
}

template <int D>
constexpr int kForwardBytes = (3 * kTileFloats<D> + kScoreFloats) * static_cast<int>(sizeof(float));
template <int D>
constexpr int kBackwardBytes =
    (4 * kTileFloats<D> + kScoreFloats) * static_cast<int>(sizeof(float));

// More than 48 KiB of shared memory must be asked for, once a kernel and device.
template <class Kernel>
void allow_shared(Kernel kernel, int bytes) {
  (void)cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

dim3 grid_of(const AttentionOp& op) {
  return {blocks_for(op.length, kTile), static_cast<unsigned>(op.heads),
          static_cast<unsigned>(op.batch)};
}

float scale_of(const AttentionOp& op) { return 1.0f / sqrtf(static_cast<float>(op.head_size)); }

template <int D>
void forward(RawStream stream, const AttentionOp& op, const float* qkv, float* lse, float* out) {
  allow_shared(forward_kernel<D>, kForwardBytes<D>);
  forward_kernel<D>
      <<<grid_of(op), kThreads, kForwardBytes<D>, stream>>>(op, scale_of(op), qkv, lse, out);
}

template <int D>
void backward(RawStream stream, const AttentionOp& op, const float* qkv, const float* lse,
              const float* dout, const float* dots, float* dqkv) {
  allow_shared(backward_keys_kernel<D>, kBackwardBytes<D>);
  allow_shared(backward_queries_kernel<D>, kBackwardBytes<D>);
  backward_keys_kernel<D><<<grid_of(op), kThreads, kBackwardBytes<D>, stream>>>(
      op, scale_of(op), qkv, lse, dout, dots, dqkv);
  backward_queries_kernel<D><<<grid_of(op), kThreads, kBackwardBytes<D>, stream>>>(
      op, scale_of(op), qkv, lse, dout, dots, dqkv);
}

// Calls f with the smallest size that is compiled and not below that of the head.
template <class F>
void with_size(std::int64_t head_size, F f) {
  if (head_size <= 32) return f.template operator()<32>();
  if (head_size <= 64) return f.template operator()<64>();
  f.template operator()<kHeadSizeMax>();
}

}  // namespace

std::int64_t attention_shared_bytes(std::int64_t head_size) {
  std::int64_t bytes = 0;
  with_size(head_size, [&]<int D>() { bytes = kBackwardBytes<D>; });
  return bytes;
}

void attention_forward(RawStream stream, const AttentionOp& op, const float* qkv, float* lse,
                       float* out) {
  with_size(op.head_size, [&]<int D>() { forward<D>(stream, op, qkv, lse, out); });
}

void attention_backward(RawStream stream, const AttentionOp& op, const float* qkv, const float* lse,
                        const float* out, const float* dout, float* dots, float* dqkv) {
  const std::int64_t rows = op.batch * op.heads * op.length;
  dots_kernel<<<blocks_for(rows, kThreads / kWarp), kThreads, 0, stream>>>(op, out, dout, dots);
  with_size(op.head_size, [&]<int D>() { backward<D>(stream, op, qkv, lse, dout, dots, dqkv); });
}

}  // namespace rubato::worker::cuda
