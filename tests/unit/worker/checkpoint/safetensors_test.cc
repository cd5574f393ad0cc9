#include "worker/checkpoint/safetensors.h"

#include "common/rng.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

std::vector<unsigned char> file_of(const std::string& header, std::size_t body) {
  std::vector<unsigned char> bytes(8 + header.size() + body);
  const std::uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

class MemoryFile : public File {
 public:
  explicit MemoryFile(std::vector<unsigned char> bytes) : bytes_(std::move(bytes)) {}
  Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> to) override {
    if (offset >= bytes_.size()) return std::size_t{0};
    const std::size_t n = std::min<std::size_t>(to.size(), bytes_.size() - offset);
    std::memcpy(to.data(), bytes_.data() + offset, n);
    return n;
  }
  Status write_at(std::uint64_t, std::span<const std::byte>) override { return ok(); }
  Result<std::uint64_t> size() const override { return bytes_.size(); }
  Status sync() override { return ok(); }

 private:
  const std::vector<unsigned char> bytes_;
};

Result<Safetensors> parse(std::vector<unsigned char> bytes) {
  return Safetensors::open(std::make_unique<MemoryFile>(std::move(bytes)), "memory");
}

bool refuses(const std::string& header, std::size_t body) {
  return !parse(file_of(header, body)).ok();
}

TEST(SafetensorsTest, WrittenFilesReadBack) {
  char folder[] = "/tmp/rubato-st-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  PosixFileSystem files;
  const std::string path = std::string(folder) + "/x.safetensors";
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> b = {7};
  ASSERT_TRUE(write_safetensors(files, path,
                                {{"a.weight", "F32", {2, 3}, a.data(), 24},
                                 {"scalar", "I32", {}, b.data(), 4},
                                 {"empty", "F32", {0, 5}, nullptr, 0}},
                                {{"format", "pt"}})
                  .ok());
  const auto file = Safetensors::open(files, path);
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  ASSERT_EQ(file->tensors().size(), 3u);
  const TensorEntry* tensor = file->find("a.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{2, 3}));
  // Bits, not values. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
  std::vector<float> back(6);
  ASSERT_TRUE(file->read(*tensor, std::as_writable_bytes(std::span(back))).ok());
  EXPECT_EQ(std::memcmp(back.data(), a.data(), 24), 0);
  EXPECT_EQ(tensor->offset % 8, 0u);
  EXPECT_EQ(file->find("b"), nullptr);
  EXPECT_EQ(Safetensors::open(files, path + "x").error().code(), Code::kNotFound);
  std::filesystem::remove_all(folder);
}

TEST(SafetensorsTest, RefusesHeadersThatLie) {
  const auto one = [](const std::string& about) { return "{\"a\":" + about + "}"; };
  EXPECT_FALSE(refuses(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 8));
  EXPECT_TRUE(refuses(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 7)) << "short";
  EXPECT_TRUE(refuses(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), 9)) << "long";
  EXPECT_TRUE(refuses(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), 8)) << "size";
  EXPECT_TRUE(refuses(one(R"({"dtype":"F32","shape":[2],"data_offsets":[1,9]})"), 9)) << "hole";
  EXPECT_TRUE(refuses(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), 8));
  EXPECT_TRUE(refuses(one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), 8));
  EXPECT_TRUE(refuses(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8));
  EXPECT_TRUE(refuses(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), 8));
  EXPECT_TRUE(refuses(one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), 8));
  EXPECT_TRUE(refuses(
      one(R"({"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]})"),
      0));
  EXPECT_TRUE(refuses(one("3"), 0));
  EXPECT_TRUE(refuses("[]", 0));
  EXPECT_TRUE(refuses("{", 0));
  EXPECT_TRUE(refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                      12))
      << "overlap";
  EXPECT_TRUE(refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                      8))
      << "twice";
  std::vector<unsigned char> huge(16, 0xff);
  EXPECT_FALSE(parse(huge).ok());
  EXPECT_FALSE(parse({huge.begin(), huge.begin() + 7}).ok());
}

// Random damage must be refused or read within bounds; never crash. (The sanitizer lane looks on.)
TEST(SafetensorsTest, SurvivesRandomDamage) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";
  const auto good = file_of(header, 32);
  Rng rng(2026);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    auto bytes = good;
    const std::uint64_t edits = 1 + rng.below(4);
    for (std::uint64_t e = 0; e < edits; ++e) {
      const std::uint64_t at = rng.below(bytes.size());
      switch (rng.below(4)) {
        case 0:
          bytes[at] = static_cast<unsigned char>(rng.below(256));
          break;
        case 1:
          bytes[at] = static_cast<unsigned char>("0123456789[]{},:\"-"[rng.below(18)]);
          break;
        case 2:
          bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        default:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes[at]);
      }
    }
    const auto file = parse(bytes);
    if (!file.ok()) continue;
    accepted += 1;
    for (const TensorEntry& tensor : file->tensors()) {
      ASSERT_LE(tensor.offset, bytes.size());
      ASSERT_LE(tensor.size, bytes.size() - tensor.offset);
    }
  }
  EXPECT_GT(accepted, 100);  // damage to tensor bytes and names is none of the reader's business
}

}  // namespace
}  // namespace rubato::worker
