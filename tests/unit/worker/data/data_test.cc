#include "common/rng.h"
#include "tests/unit/worker/support/troubled_files.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"
#include "worker/data/tokenizer.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

namespace fs = std::filesystem;

class DataTest : public ::testing::Test {
 protected:
  DataTest() {
    char path[] = "/tmp/rubato-data-XXXXXX";
    folder_ = mkdtemp(path);
  }
  ~DataTest() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string write_bytes(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string bytes_of(const std::string& file) const {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string write_tokens(std::uint64_t vocabulary, std::size_t count) const {
    auto writer = std::move(TokenFileWriter::create(files, path("t"), vocabulary)).value();
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<std::int32_t>(i * 7 % vocabulary));
    EXPECT_TRUE(writer.append(tokens).ok());
    EXPECT_TRUE(writer.finish().ok());
    return path("t");
  }

  mutable PosixFileSystem files;

 private:
  std::string folder_;
};

template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

TEST_F(DataTest, FilesOfLlmcAreRead) {
  for (const auto& [magic, width, vocabulary] :
       {std::tuple(20240520, 2, 50257u), std::tuple(20240801, 4, 128256u)}) {
    std::string bytes;
    for (const std::int32_t word : {magic, 1, 3}) put(bytes, word);
    bytes.resize(1024);
    for (const std::uint32_t token : {5u, 50256u, 0u})
      bytes.append(reinterpret_cast<const char*>(&token), static_cast<std::size_t>(width));
    const auto file = TokenFile::open(files, write_bytes("l", bytes));
    ASSERT_TRUE(file.ok()) << file.error().to_string();
    EXPECT_EQ(file->vocabulary(), vocabulary);
    std::vector<std::int32_t> tokens(3);
    ASSERT_TRUE(file->read(0, tokens).ok());
    EXPECT_EQ(tokens, (std::vector<std::int32_t>{5, 50256, 0}));
  }
}

// Two sequences of 3 and 2 tokens; `change` spoils the index.
std::string megatron_index(std::uint8_t type, std::int64_t second) {
  std::string bytes("MMIDIDX\0\0", 9);
  put(bytes, std::uint64_t{1});
  put(bytes, type);
  put(bytes, std::uint64_t{2});
  put(bytes, std::uint64_t{3});
  for (const std::int32_t length : {3, 2}) put(bytes, length);
  for (const std::int64_t place : {std::int64_t{0}, second}) put(bytes, place);
  for (const std::int64_t document : {0, 1, 2}) put(bytes, document);
  return bytes;
}

TEST_F(DataTest, FilesOfMegatronAreRead) {
  std::string tokens;
  for (const int token : {7, 8, 9, 300, 1}) put(tokens, static_cast<std::uint16_t>(token));
  const std::string bin = write_bytes("m.bin", tokens);
  const auto why = [&](const std::string& index) {
    write_bytes("m.idx", index);
    const auto file = TokenFile::open(files, bin);
    if (file.ok()) return std::string();
    EXPECT_FALSE(file.error().reason().empty());
    return file.error().what();
  };
  EXPECT_EQ(why(megatron_index(8, 6)), "");
  const auto file = TokenFile::open(files, bin).value();
  EXPECT_EQ(file.count(), 5u);
  EXPECT_EQ(file.vocabulary(), 301u);
  std::vector<std::int32_t> read(4);
  ASSERT_TRUE(file.read(1, read).ok());
  EXPECT_EQ(read, (std::vector<std::int32_t>{8, 9, 300, 1}));

  EXPECT_NE(why(megatron_index(5, 6)).find("tokens of type 5"), std::string::npos);
  EXPECT_NE(why(megatron_index(8, 4)).find("sequence 1 does not begin"), std::string::npos);
  EXPECT_NE(why(megatron_index(4, 12)).find("m.idx says 5 tokens, it has 10 bytes"),
            std::string::npos);
  EXPECT_NE(why(megatron_index(8, 6).substr(0, 60)).find("60 bytes for"), std::string::npos);
  EXPECT_NE(why("MMIDIDX").find("its magic"), std::string::npos);
  // An index that the disk does not show now is there: the tokens are no file of another kind.
  TroubledFiles troubled(files);
  troubled.on_stat = [](const std::string& at) {
    return at.ends_with(".idx") ? Status(Error(Code::kUnavailable, "EIO")) : ok();
  };
  EXPECT_EQ(TokenFile::open(troubled, bin).error().reason(), "DataUnreadable");
}

// By what they begin with, under any name; Megatron's by the index beside it.
TEST_F(DataTest, TheTokenFileOfAFolderIsFound) {
  const auto found_in = [&](const std::string& folder) {
    const auto found = find_token_file(files, path(folder));
    if (found.ok()) return fs::path(*found).filename().string();
    EXPECT_EQ(found.error().code(), Code::kNotFound);
    EXPECT_EQ(found.error().reason(), "DataNotFound");
    return found.error().what().substr(path(folder).size());
  };
  const std::string ours = bytes_of(write_tokens(257, 10));
  std::string llmc;
  for (const std::int32_t word : {20240520, 1, 0}) put(llmc, word);
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"kjv.tokens", ours}, {"half", ours.substr(0, 70)}, {"x.bin", llmc}, {"m.bin", ""}};
  for (const auto& [name, bytes] : kinds) {
    fs::create_directory(path("d"));
    write_bytes("d/notes.txt", "RUB");
    write_bytes("d/pytorch_model.bin", "PK");
    write_bytes("d/m.idx", "MMIDIDX");
    fs::create_directory(path("d/checkpoints.bin"));
    ASSERT_EQ(mkfifo(path("d/pipe").c_str(), 0600), 0);
    fs::create_symlink("nothing", path("d/gone"));
    EXPECT_EQ(found_in("d"), ": expected one token file, found none");
    write_bytes("d/" + name, bytes);
    EXPECT_EQ(found_in("d"), name);
    write_bytes("d/z", ours);
    EXPECT_EQ(found_in("d"), ": expected one token file, found 2: " + name + ", z");
    fs::remove_all(path("d"));
  }
  EXPECT_EQ(find_token_file(files, path("t")).value(), path("t"));
  EXPECT_EQ(find_token_file(files, path("d")).value(), path("d"));  // open() says that it is gone
}

TEST_F(DataTest, TokenFilesOfEveryWidthRoundTrip) {
  for (const auto& [vocabulary, width] :
       std::vector<std::pair<std::uint64_t, int>>{{256, 1}, {257, 2}, {65536, 2}, {100000, 4}}) {
    const std::string file = write_tokens(vocabulary, 3000);
    const auto tokens = TokenFile::open(files, file);
    ASSERT_TRUE(tokens.ok()) << tokens.error().to_string();
    EXPECT_EQ(tokens->count(), 3000u);
    EXPECT_EQ(tokens->bytes_per_token(), width);
    EXPECT_EQ(tokens->vocabulary(), vocabulary);
    std::vector<std::int32_t> out(5);
    ASSERT_TRUE(tokens->read(2995, out).ok());
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_EQ(out[i], static_cast<std::int32_t>((2995 + i) * 7 % vocabulary));
  }
}

TEST_F(DataTest, DamagedTokenFilesAreRefused) {
  const std::string good = bytes_of(write_tokens(257, 100));
  EXPECT_EQ(TokenFile::open(files, path("missing")).error().code(), Code::kNotFound);
  EXPECT_EQ(TokenFile::open(files, write_bytes("a", "")).error().reason(), "DataInvalid");
  EXPECT_FALSE(TokenFile::open(files, write_bytes("b", good.substr(0, 63))).ok());
  EXPECT_FALSE(TokenFile::open(files, write_bytes("c", good.substr(0, good.size() - 1))).ok());
  EXPECT_FALSE(TokenFile::open(files, write_bytes("d", good + "x")).ok());
  for (const std::size_t at :
       {0u, 8u, 12u, 16u, 24u}) {  // magic, version, width, count, vocabulary
    std::string bad = good;
    bad.replace(at, 4, "\xff\xff\xff\x7f");
    EXPECT_FALSE(TokenFile::open(files, write_bytes("e", bad)).ok()) << at;
  }
  std::string changed = good;
  changed[80] = static_cast<char>(changed[80] ^ 1);
  EXPECT_EQ(TokenFile::open(files, write_bytes("f", changed)).error().reason(), "DataDamaged");
  // Half copied: the header is there already.
  EXPECT_EQ(TokenFile::open(files, write_bytes("g", good.substr(0, 120))).error().reason(),
            "DataDamaged");
  std::string zeros = good;
  zeros.replace(140, 60, std::string(60, '\0'));
  EXPECT_EQ(TokenFile::open(files, write_bytes("h", zeros)).error().reason(), "DataDamaged");
}

// Under a running job the file is cut, or bytes of it change: an error, never other tokens.
TEST_F(DataTest, WhatChangesAfterOpenIsNoticed) {
  const std::string good = bytes_of(write_tokens(257, 30000));
  std::vector<std::int32_t> out(100);
  for (const std::size_t at : {64u, 70u, 20000u, 40000u, 60063u}) {
    const auto file = TokenFile::open(files, write_bytes("a", good));
    ASSERT_TRUE(file->read((at - 64) / 2 > 29900 ? 29900 : (at - 64) / 2, out).ok());
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 16);
    write_bytes("a", bad);
    const Status read = file->read((at - 64) / 2 > 29900 ? 29900 : (at - 64) / 2, out);
    ASSERT_FALSE(read.ok()) << at;
    EXPECT_EQ(read.error().code(), Code::kInvalid);
    EXPECT_EQ(read.error().reason(), "DataDamaged");
  }
  const auto file = TokenFile::open(files, write_bytes("a", good));
  write_bytes("a", good.substr(0, 40000));
  EXPECT_TRUE(file->read(0, out).ok());
  EXPECT_EQ(file->read(29900, out).error().reason(), "DataDamaged");
}

TEST_F(DataTest, ReadsFilesOfLlmC) {
  std::string bytes(1024, '\0');
  const std::int32_t header[] = {20240520, 1, 4};
  std::memcpy(bytes.data(), header, sizeof header);
  for (const std::uint16_t token : std::vector<std::uint16_t>{5, 50256, 7, 8})
    bytes.append(reinterpret_cast<const char*>(&token), sizeof token);
  const auto file = TokenFile::open(files, write_bytes("gpt2.bin", bytes));
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  std::vector<std::int32_t> out(4);
  ASSERT_TRUE(file->read(0, out).ok());
  EXPECT_EQ(out, (std::vector<std::int32_t>{5, 50256, 7, 8}));
  bytes[1025] = '\xff';  // a file without a digest: the vocabulary is all there is to compare with
  const auto beyond = TokenFile::open(files, write_bytes("beyond.bin", bytes));
  EXPECT_EQ(beyond.error().reason(), "DataInvalid");
  EXPECT_TRUE(beyond.error().what().ends_with("has the token 65285, those below 50257 are read"));
}

TEST_F(DataTest, AnUnfinishedWriterLeavesNothing) {
  {
    auto writer = std::move(TokenFileWriter::create(files, path("never"), 10)).value();
    EXPECT_EQ(writer.append(std::vector<std::int32_t>{10}).error().code(), Code::kInvalid);
  }
  EXPECT_FALSE(fs::exists(path("never")));
  EXPECT_FALSE(fs::exists(path("never.tmp")));
}

TEST(Tokenizer, BytesRoundTrip) {
  const ByteTokenizer tokenizer;
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const auto tokens = tokenizer.encode(all);
  EXPECT_EQ(tokens[255], 255);
  EXPECT_EQ(tokenizer.decode(tokens), all);
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{72, ByteTokenizer::kEndOfText, 105}), "Hi");
}

TEST(Permutation, IsABijectionWithAnInverse) {
  for (const std::uint64_t size : {1u, 2u, 3u, 5u, 16u, 17u, 1000u, 4097u}) {
    const KeyedPermutation shuffle(size, 42 + size);
    std::vector<bool> seen(size);
    std::uint64_t fixed = 0;
    for (std::uint64_t x = 0; x < size; ++x) {
      const std::uint64_t y = shuffle(x);
      ASSERT_LT(y, size);
      ASSERT_FALSE(seen[y]);
      seen[y] = true;
      ASSERT_EQ(shuffle.inverse(y), x);
      fixed += x == y ? 1 : 0;
    }
    if (size >= 1000) {
      EXPECT_LT(fixed, 12u);  // a random one has one fixed point on average
    }
  }
}

TEST(SamplerTest, EveryEpochGivesEachSampleOnce) {
  const Sampler sampler = Sampler::create({.seed = 3,
                                           .global_batch = 6,
                                           .micro_batch = 2,
                                           .sequence_length = 10,
                                           .validation_fraction = 0.1},
                                          1001)
                              .value();
  EXPECT_EQ(sampler.validation_samples(), 10);
  EXPECT_EQ(sampler.train_samples(), 90);
  std::vector<std::int64_t> orders[3];
  std::multiset<std::int64_t> seen;
  for (std::int64_t step = 0; step < 45; ++step)
    for (std::int64_t i = 0; i < 6; ++i) {
      const std::int64_t id = sampler.sample_id(step, i);
      ASSERT_LT(id, 90);
      seen.insert(id);
      orders[sampler.epoch(step, i)].push_back(id);
    }
  for (std::int64_t id = 0; id < 90; ++id) EXPECT_EQ(seen.count(id), 3u);
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  for (const auto& order : orders)
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 90u);
}

TEST(SamplerTest, DigestsOfMicroBatchesAddUpAndSeeEveryChange) {
  const Sampler sampler =
      Sampler::create({.seed = 3, .global_batch = 8, .micro_batch = 2, .sequence_length = 10},
                      10001)
          .value();
  std::uint64_t sum = 0;
  for (const std::int64_t m : {3, 0, 2, 1}) sum += sampler.micro_batch_digest(5, m);
  EXPECT_EQ(sum, sampler.step_digest(5));
  EXPECT_NE(sampler.step_digest(5), sampler.step_digest(6));
  const auto ids = sampler.micro_batch_ids(5, 0);
  const std::uint64_t right = sample_digest(5, 0, ids[0]) + sample_digest(5, 1, ids[1]);
  EXPECT_EQ(right, sampler.micro_batch_digest(5, 0));
  EXPECT_NE(sample_digest(5, 0, ids[1]) + sample_digest(5, 1, ids[0]), right) << "reorder";
  EXPECT_NE(sample_digest(5, 0, ids[0]), right) << "skip";
  EXPECT_NE(right + sample_digest(5, 0, ids[0]), right) << "repeat";
}

TEST_F(DataTest, MicroBatchesAreWindowsOfTheFile) {
  const auto file = TokenFile::open(files, write_tokens(251, 500));
  const Sampler sampler = Sampler::create({.seed = 1,
                                           .global_batch = 4,
                                           .micro_batch = 2,
                                           .sequence_length = 16,
                                           .validation_fraction = 0.2},
                                          file->count())
                              .value();
  std::vector<std::int32_t> tokens;
  ASSERT_TRUE(sampler.read_micro_batch(*file, 2, 1, tokens).ok());
  ASSERT_EQ(tokens.size(), 2u * 17u);
  const auto ids = sampler.micro_batch_ids(2, 1);
  for (std::size_t row = 0; row < 2; ++row)
    for (std::size_t i = 0; i < 17; ++i)
      EXPECT_EQ(tokens[row * 17 + i],
                static_cast<std::int32_t>((static_cast<std::size_t>(ids[row]) * 16 + i) * 7 % 251));
  ASSERT_GT(sampler.validation_micro_batches(), 0);
  ASSERT_TRUE(sampler.read_validation(*file, 0, tokens).ok());
  EXPECT_EQ(tokens[0], static_cast<std::int32_t>(static_cast<std::size_t>(sampler.train_samples()) *
                                                 16 * 7 % 251));
  ASSERT_TRUE(sampler.read_validation(*file, sampler.validation_micro_batches() - 1, tokens).ok());
}

TEST(SamplerTest, RefusesWhatCannotWork) {
  const SamplerConfig good{.global_batch = 4, .micro_batch = 2, .sequence_length = 8};
  EXPECT_TRUE(Sampler::create(good, 1000).ok());
  const auto refuses = [](SamplerConfig config, std::uint64_t tokens) {
    return Sampler::create(config, tokens).error().code() == Code::kInvalid;
  };
  EXPECT_TRUE(refuses(good, 30));
  EXPECT_TRUE(refuses(good, 0));
  SamplerConfig odd = good;
  odd.global_batch = 5;
  EXPECT_TRUE(refuses(odd, 1000));
  odd = good;
  odd.validation_fraction = 1.0;
  EXPECT_TRUE(refuses(odd, 1000));
}

}  // namespace
}  // namespace rubato::worker
