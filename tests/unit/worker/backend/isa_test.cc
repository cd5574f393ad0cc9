// Our own kernels must give the same bits on every instruction set, in every build type and on
// every machine: one digest, written here, holds for all of them. When a change of arithmetic is
// meant, it becomes a kernel beside the old one and a numerics version (worker/model/numerics.h):
// running jobs keep theirs. Only where that cannot be, raise kKernelsVersion
// (worker/backend/cpu/cpu_device.cc): it takes every running job its fingerprint.
#include "worker/backend/cpu/isa.h"

#include "common/rng.h"
#include "worker/backend/cpu/float_mode.h"
#include "worker/backend/cpu/ops.h"
#include "worker/backend/digest.h"

#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker::cpu {
namespace {

std::vector<float> noise(std::size_t count, std::uint64_t seed, double size) {
  Rng rng(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(size * (2 * rng.unit() - 1));
  return out;
}

class Digests {
 public:
  template <class T>
  void add(const std::string& name, const std::vector<T>& values) {
    const auto value = digest_of(values.data(), values.size() * sizeof(T));
    each[name] = each.count(name) != 0 ? mix64(each[name] ^ value) : value;
    all.add_u64(value);
  }
  std::map<std::string, std::uint64_t> each;
  Digest all;
};

// The kernels of a model, on rows of `c`.
void run_model(const Ops& ops, std::int64_t c, Digests& out) {
  constexpr std::int64_t kRows = 9;
  const auto n = static_cast<std::size_t>(kRows * c), width = static_cast<std::size_t>(c);
  const auto x = noise(n, 1, 4), other = noise(n, 2, 1), dy = noise(n, 3, 1);
  const auto weight = noise(width, 4, 1), bias = noise(width, 5, 1);
  std::vector<float> sum(n), y(n), mean(kRows), rstd(kRows), dx = noise(n, 6, 1), dw(width),
                                                             db(width), columns(width);
  ops.layernorm_forward(kRows, c, 1e-5f, x.data(), other.data(), weight.data(), bias.data(),
                        sum.data(), y.data(), mean.data(), rstd.data());
  out.add("layernorm_forward", y);
  ops.layernorm_backward(kRows, c, sum.data(), weight.data(), mean.data(), rstd.data(), dy.data(),
                         dx.data(), dw.data(), db.data());
  out.add("layernorm_backward", dx);
  out.add("layernorm_backward", dw);
  out.add("layernorm_backward", db);
  ops.column_sum(kRows, c, x.data(), columns.data());
  out.add("column_sum", columns);
  std::vector<float> gelu(n), slope = dy;
  ops.gelu_forward(static_cast<std::int64_t>(n), x.data(), gelu.data());
  ops.gelu_backward(static_cast<std::int64_t>(n), x.data(), slope.data());
  out.add("gelu_forward", gelu);
  out.add("gelu_backward", slope);

  std::vector<std::int32_t> targets;
  for (std::int64_t r = 0; r < kRows; ++r) targets.push_back(static_cast<std::int32_t>(r % c));
  std::vector<float> logits = x, losses(kRows);
  ops.softmax_cross_entropy(kRows, c, c, 0.125f, true, targets.data(), logits.data(),
                            losses.data());
  out.add("softmax_cross_entropy", logits);
  out.add("softmax_cross_entropy", losses);

  std::vector<float> scores = noise(static_cast<std::size_t>(kRows * 40), 7, 5);
  ops.causal_softmax(kRows, 20, 11, 40, scores.data());
  out.add("causal_softmax", scores);
  std::vector<float> ds = noise(static_cast<std::size_t>(kRows * 40), 8, 1);
  ops.causal_softmax_backward(kRows, 20, 11, 40, c, 0.3f, c, x.data(), dy.data(), scores.data(),
                              ds.data());
  out.add("causal_softmax_backward", ds);

  std::vector<float> p = x, m = other, v = dy;
  for (float& value : v) value = value * value;
  ops.adamw(static_cast<std::int64_t>(n), {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.2f, 0.7f},
            dy.data(), p.data(), m.data(), v.data());
  out.add("adamw", p);
  out.add("adamw", m);
  out.add("adamw", v);

  std::vector<float> embedded(n), dtable(static_cast<std::size_t>(11 * c)),
      dpositions(static_cast<std::size_t>(5 * c));
  const auto table = noise(static_cast<std::size_t>(11 * c), 9, 1);
  std::vector<std::int32_t> ids, work(11 + 1 + kRows);
  for (std::int64_t r = 0; r < kRows; ++r) ids.push_back(static_cast<std::int32_t>(r * r % 11));
  ops.embed_forward(kRows, 5, c, ids.data(), table.data(), table.data(), embedded.data());
  ops.embed_backward(kRows, 5, c, 11, ids.data(), dy.data(), work.data(), dtable.data(),
                     dpositions.data());
  out.add("embed_forward", embedded);
  out.add("embed_backward", dtable);
  out.add("embed_backward", dpositions);
}

// The kernels of the exact sum.
void run_sum(const Ops& ops, Digests& out) {
  constexpr std::size_t kFlat = 5 * 256;
  const auto g = noise(kFlat, 10, 0.3);
  std::vector<std::int32_t> exponents(5), sums(kFlat), guards(5);
  ops.block_exponents(kFlat, -1000, g.data(), exponents.data());
  out.add("block_exponents", exponents);
  ops.quantise_add(kFlat, 26, 12, exponents.data(), g.data(), sums.data(), guards.data());
  out.add("quantise_add", sums);
  out.add("quantise_add", guards);
  ops.add_i32(kFlat, sums.data() /* from itself: doubles */,
              std::vector<std::int32_t>(sums).data());
  std::vector<float> back(kFlat);
  ops.dequantise(kFlat, 26, 1.0f / 3, exponents.data(), sums.data(), back.data());
  out.add("dequantise", back);
  std::vector<double> norms(2);
  ops.squared_norm_chunks(kFlat, 1024, g.data(), norms.data());
  out.add("squared_norm_chunks", norms);
}

// The kernel of the exact sum that came with numerics version 2: small and large contributions of
// both signs, in four micro-batches.
void run_dither(const Ops& ops, Digests& out) {
  constexpr std::size_t kFlat = 5 * 256;
  const std::vector<std::int32_t> exponents = {0, 1, -3, 20, 27};
  std::vector<std::int32_t> sums(kFlat), guards(5);
  for (std::uint32_t m = 0; m < 4; ++m) {
    const auto g = noise(kFlat, 20 + m, 0.3);
    ops.dither_add(kFlat, {27, 4, 0x0123456789abcdef, m << 30}, exponents.data(), g.data(),
                   sums.data(), guards.data());
  }
  out.add("dither_add", sums);
  out.add("dither_add", guards);
}

// The kernels that came with Llama.
void run_llama(const Ops& ops, std::int64_t c, Digests& out) {
  constexpr std::int64_t kRows = 9;
  const auto n = static_cast<std::size_t>(kRows * c), width = static_cast<std::size_t>(c);
  const auto x = noise(n, 1, 4), other = noise(n, 2, 1), dy = noise(n, 3, 1);
  const auto weight = noise(width, 4, 1);
  std::vector<float> sum(n), y(n), rstd(kRows), dx = noise(n, 6, 1), dweight(width);
  ops.rmsnorm_forward(kRows, c, 1e-5f, x.data(), other.data(), weight.data(), sum.data(), y.data(),
                      rstd.data());
  out.add("rmsnorm_forward", y);
  ops.rmsnorm_backward(kRows, c, sum.data(), weight.data(), rstd.data(), dy.data(), dx.data(),
                       dweight.data());
  out.add("rmsnorm_backward", dx);
  out.add("rmsnorm_backward", dweight);
  const auto gate_up = noise(2 * n, 7, 8);
  std::vector<float> dgate_up(2 * n);
  ops.swiglu_forward(kRows, c, gate_up.data(), y.data());
  ops.swiglu_backward(kRows, c, gate_up.data(), dy.data(), dgate_up.data());
  out.add("swiglu_forward", y);
  out.add("swiglu_backward", dgate_up);
  std::vector<float> turned = x;
  const std::int64_t even = c / 2 * 2;
  ops.rotate({kRows, 4, 1, even, c, true}, noise(4 * width, 8, 1).data(), turned.data());
  out.add("rotate", turned);
}

// All kernels on shapes with and without tails.
Digests run(const Ops& ops) {
  const FloatMode mode;
  Digests out;
  for (const std::int64_t c : {3, 16, 47, 192}) run_model(ops, c, out);
  run_sum(ops, out);
  return out;
}

TEST(Isa, OwnKernelsGiveOneDigestOnEveryInstructionSetBuildAndMachine) {
  constexpr const char* kGolden = "75d1237dd17e4d2e";
  const Isa best = best_isa().value();
  const Digests plain = run(ops_sse41());
  EXPECT_EQ(to_hex(plain.all.value()), kGolden);
  EXPECT_EQ(run(ops_sse41()).each, plain.each) << "a second run";
  if (best >= Isa::kAvx2) {
    EXPECT_EQ(run(ops_avx2()).each, plain.each);
  }
  if (best >= Isa::kAvx512) {
    EXPECT_EQ(run(ops_avx512()).each, plain.each);
  }
}

// One digest of what `run` adds, on all instruction sets that this machine has.
void expect_golden(void (*run)(const Ops&, Digests&), const char* golden) {
  const auto digest = [&](const Ops& ops) {
    const FloatMode mode;
    Digests out;
    run(ops, out);
    return to_hex(out.all.value());
  };
  const Isa best = best_isa().value();
  EXPECT_EQ(digest(ops_sse41()), golden);
  if (best >= Isa::kAvx2) {
    EXPECT_EQ(digest(ops_avx2()), golden);
  }
  if (best >= Isa::kAvx512) {
    EXPECT_EQ(digest(ops_avx512()), golden);
  }
}

TEST(Isa, DitheredRoundingGivesOneDigestOnEveryInstructionSetBuildAndMachine) {
  expect_golden(run_dither, "f485c4e628a2375b");
}

TEST(Isa, ChecksumsAreEqualOnEveryInstructionSet) {
  constexpr std::size_t kCount = 3 * 256 + 13;  // its last chunk is short, and so is a row there
  std::vector<std::int32_t> x(kCount);
  for (std::size_t i = 0; i < kCount; ++i) x[i] = static_cast<std::int32_t>(i * 2654435761u);
  const auto weighed = [&](const Ops& ops) {
    std::vector<std::int64_t> out(4);
    ops.weighted_sums(kCount, 256, x.data(), out.data());
    return out;
  };
  const Isa best = best_isa().value();
  const auto plain = weighed(ops_sse41());
  if (best >= Isa::kAvx2) {
    EXPECT_EQ(weighed(ops_avx2()), plain);
  }
  if (best >= Isa::kAvx512) {
    EXPECT_EQ(weighed(ops_avx512()), plain);
  }
}

TEST(Isa, KernelsOfLlamaGiveOneDigestOnEveryInstructionSetBuildAndMachine) {
  expect_golden(
      [](const Ops& ops, Digests& out) {
        for (const std::int64_t c : {3, 16, 47, 192}) run_llama(ops, c, out);
      },
      "05b10a1f3ea630d7");
}

TEST(Isa, RoundsToTheNearestBf16OnEveryInstructionSet) {
  struct Case {
    std::uint32_t from;
    std::uint16_t to;
  };
  const std::vector<Case> cases = {
      {0x00000000, 0x0000}, {0x80000000, 0x8000},                        // zeros
      {0x3f800000, 0x3f80}, {0xbf800001, 0xbf80},                        // 1, and -1 and a little
      {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},                        // halves go to the even
      {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80},                        // beside a half
      {0x3fffffff, 0x4000}, {0x00000001, 0x0000}, {0x00018000, 0x0002},  // a carry; subnormals
      {0x7f7fffff, 0x7f80}, {0x7f7f7fff, 0x7f7f}, {0xff7fffff, 0xff80},  // the largest
      {0x7f800000, 0x7f80}, {0xff800000, 0xff80},                        // infinities
      {0x7f800001, 0x7fc0}, {0xffc12345, 0xffc1}, {0x7fffffff, 0x7fff},  // NaN
  };
  std::vector<float> from;
  for (const Case& one : cases) from.push_back(std::bit_cast<float>(one.from));
  const Isa best = best_isa().value();
  const auto check = [&](const Ops& ops) {
    const FloatMode mode;
    std::vector<std::uint16_t> to(from.size());
    ops.to_bf16(static_cast<std::int64_t>(from.size()), from.data(), to.data());
    for (std::size_t i = 0; i < cases.size(); ++i)
      EXPECT_EQ(to[i], cases[i].to) << std::hex << cases[i].from;
  };
  check(ops_sse41());
  if (best >= Isa::kAvx2) check(ops_avx2());
  if (best >= Isa::kAvx512) check(ops_avx512());
}

TEST(Isa, NamesOfEachPrecision) {
  EXPECT_EQ(parse_isa("avx512_core_bf16").error().code(), Code::kInvalid) << "in f32";
  for (const Isa isa : {Isa::kSse41, Isa::kAvx2, Isa::kAvx512})
    EXPECT_EQ(precision_of(isa), Precision::kF32);
  for (const Isa isa : {Isa::kAvx512Bf16, Isa::kAmx})
    EXPECT_EQ(precision_of(isa), Precision::kBf16);
  const auto best = best_isa(Precision::kBf16);
  if (!best.ok()) {
    EXPECT_NE(best.error().what().find("no instructions for bf16"), std::string::npos);
    return;
  }
  EXPECT_EQ(parse_isa("auto", Precision::kBf16).value(), *best);
  EXPECT_EQ(parse_isa("avx512_core_bf16", Precision::kBf16).value(), Isa::kAvx512Bf16);
  EXPECT_EQ(parse_isa("avx512_core", Precision::kBf16).error().code(), Code::kInvalid);
}

TEST(Isa, NamesAndPin) {
  EXPECT_TRUE(parse_isa("auto").ok());
  EXPECT_EQ(parse_isa("mmx").error().code(), Code::kInvalid);
  const Isa best = best_isa().value();
  ASSERT_TRUE(pin_isa(best).ok());
  EXPECT_TRUE(pin_isa(best).ok());
  if (best != Isa::kSse41) {
    EXPECT_EQ(pin_isa(Isa::kSse41).error().code(), Code::kConflict);
  }
}

}  // namespace
}  // namespace rubato::worker::cpu
