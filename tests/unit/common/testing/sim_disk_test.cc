#include "common/testing/sim_disk.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::testing {
namespace {

class SimDiskTest : public ::testing::Test {
 protected:
  static void put(FileSystem& files, const std::string& path, std::string_view text,
                  bool is_synced) {
    const auto file = files.open(path, OpenMode::kCreate).value();
    ASSERT_TRUE(file->write_at(0, std::as_bytes(std::span(text))).ok());
    if (is_synced) {
      ASSERT_TRUE(file->sync().ok());
    }
  }
  static std::string get(FileSystem& files, const std::string& path) {
    const auto text = read_text(files, path, 1 << 20);
    return text.ok() ? text.value() : name_of(text.error().code());
  }
  std::unique_ptr<SimDisk> disk(const std::string& node) {
    auto disk = std::make_unique<SimDisk>(sim_.process(node), node);
    disk->mount("/", volume_);
    return disk;
  }

  SimExecutor sim_{1};
  SimVolume volume_{sim_, 2};
};

TEST_F(SimDiskTest, IsAFileSystem) {
  const auto a = disk("a");
  EXPECT_EQ(get(*a, "/d/x"), "not_found");
  EXPECT_FALSE(a->open("/d/x", OpenMode::kCreate).ok()) << "no such directory";
  ASSERT_TRUE(a->make_directories("/d/e").ok());
  put(*a, "/d/x", "hello", false);
  EXPECT_EQ(get(*a, "/d/x"), "hello");
  EXPECT_EQ(a->list("/d").value(), (std::vector<std::string>{"e", "x"}));
  EXPECT_TRUE(a->stat("/d")->is_directory);
  EXPECT_EQ(a->stat("/d/x")->size, 5u);
  const auto file = a->open("/d/x", OpenMode::kUpdate).value();
  ASSERT_TRUE(file->write_at(7, std::as_bytes(std::span("!", 1))).ok());
  EXPECT_EQ(get(*a, "/d/x"), std::string("hello\0\0!", 8));
  ASSERT_TRUE(a->rename("/d/x", "/d/y").ok());
  EXPECT_EQ(get(*a, "/d/x"), "not_found");
  EXPECT_EQ(a->rename("/d/x", "/d/z").error().code(), Code::kNotFound);
  EXPECT_EQ(a->rename("/d/e", "/d").error().code(), Code::kAlreadyExists) << "not empty";
  const std::string unique = a->make_unique_directory("/d/draft-").value();
  EXPECT_TRUE(a->stat(unique)->is_directory);
  EXPECT_EQ(volume_.used(), 8u);
  ASSERT_TRUE(a->remove_all("/d").ok());
  EXPECT_TRUE(a->remove_all("/d").ok());
  EXPECT_EQ(a->list("/").value().size(), 0u);
}

TEST_F(SimDiskTest, MountsAreVolumesOfTheirOwn) {
  SimVolume other(sim_, 3);
  SimDisk a(sim_.process("a"), "a");
  a.mount("/data", volume_);
  a.mount("/data/deep", other);
  put(a, "/data/x", "outer", false);
  put(a, "/data/deep/x", "inner", false);
  EXPECT_EQ(get(a, "/data/x"), "outer");
  EXPECT_EQ(get(a, "/data/deep/x"), "inner");
  EXPECT_EQ(get(a, "/other"), "not_found");
  EXPECT_EQ(a.rename("/data/x", "/data/deep/y").error().code(), Code::kUnavailable);
}

// What is synced is there, always; of the rest all outcomes occur.
TEST_F(SimDiskTest, APowerCutKeepsWhatWasSyncedAndAnyPartOfTheRest) {
  const std::string old_text(3 * kSimBlockBytes, 'o');
  const std::string new_text(3 * kSimBlockBytes, 'n');
  std::set<std::string> seen;
  std::set<std::vector<std::string>> names;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SimVolume volume(sim_, seed);
    SimDisk a(sim_.process("a"), "a");
    a.mount("/", volume);
    put(a, "/f", old_text, true);
    ASSERT_TRUE(a.sync_directory("/").ok());
    const auto file = a.open("/f", OpenMode::kUpdate).value();
    ASSERT_TRUE(file->write_at(0, std::as_bytes(std::span(new_text))).ok());
    put(a, "/g", "", true);
    ASSERT_TRUE(a.rename("/g", "/h").ok());
    volume.lose_power();
    const std::string text = get(a, "/f");
    std::string blocks;
    for (std::size_t block = 0; block < 3; ++block) blocks += text[block * kSimBlockBytes];
    ASSERT_EQ(text.size(), old_text.size());
    seen.insert(blocks);
    names.insert(a.list("/").value());
  }
  EXPECT_EQ(seen, (std::set<std::string>{"ooo", "noo", "ono", "oon", "nno", "non", "onn", "nnn"}));
  EXPECT_EQ(names, (std::set<std::vector<std::string>>{{"f"}, {"f", "g"}, {"f", "h"}}));
}

TEST_F(SimDiskTest, SyncedNamesAndBytesSurvive) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimVolume volume(sim_, seed);
    SimDisk a(sim_.process("a"), "a");
    a.mount("/", volume);
    ASSERT_TRUE(a.make_directories("/d").ok());
    put(a, "/d/x", "bytes", true);
    ASSERT_TRUE(a.rename("/d/x", "/y").ok());
    ASSERT_TRUE(a.sync_directory("/").ok());
    put(a, "/y", "", false);  // emptied, and not synced
    volume.lose_power();
    EXPECT_EQ(a.list("/").value(), (std::vector<std::string>{"d", "y"}));
    EXPECT_EQ(a.list("/d").value().size(), 0u) << "a rename is whole";
    const std::string text = get(a, "/y");
    EXPECT_TRUE(text == "bytes" || text.empty()) << text;
  }
}

TEST_F(SimDiskTest, OnlyTheNodeThatLostItsPowerLosesAnything) {
  const auto a = disk("a");
  const auto b = disk("b");
  bool lost = false;
  for (int i = 0; i < 30; ++i) {
    put(*a, "/a" + std::to_string(i), "a", false);
    put(*b, "/b" + std::to_string(i), "b", false);
    volume_.lose_power("a");
    EXPECT_EQ(get(*a, "/b" + std::to_string(i)), "b");
    lost = lost || get(*b, "/a" + std::to_string(i)) != "a";
  }
  EXPECT_TRUE(lost);
}

TEST_F(SimDiskTest, SlowFullAndBrokenDisks) {
  const auto a = disk("a");
  put(*a, "/x", "1234", false);
  volume_.faults().delay = 10s;
  MonoTime before = sim_.now();
  EXPECT_EQ(a->stat("/x")->size, 4u);
  EXPECT_EQ(sim_.now() - before, 10s);
  volume_.faults().jitter = 5s;
  before = sim_.now();
  EXPECT_TRUE(a->stat("/x").ok());
  EXPECT_GE(sim_.now() - before, 10s);
  EXPECT_LT(sim_.now() - before, 15s);
  volume_.faults() = {.capacity = 6};
  const auto file = a->open("/x", OpenMode::kUpdate).value();
  EXPECT_EQ(file->write_at(4, std::as_bytes(std::span("5678", 4))).error().code(),
            Code::kExhausted);
  EXPECT_EQ(get(*a, "/x"), "123456") << "what fits is written";
  volume_.faults().capacity = 100;
  EXPECT_TRUE(file->write_at(4, std::as_bytes(std::span("5678", 4))).ok());
  volume_.faults().broken = true;
  EXPECT_EQ(file->sync().error().code(), Code::kUnavailable);
  EXPECT_EQ(a->list("/").error().code(), Code::kUnavailable);
}

TEST_F(SimDiskTest, ASharedVolumeShowsNamesLateToOthers) {
  const auto a = disk("a");
  const auto b = disk("b");
  put(*a, "/x", "old", false);
  volume_.faults().lag = 3s;
  sim_.run_for(3s);
  put(*a, "/y", "new", false);
  ASSERT_TRUE(a->rename("/y", "/x").ok());
  EXPECT_EQ(get(*a, "/x"), "new");
  EXPECT_EQ(get(*b, "/x"), "old");
  EXPECT_EQ(get(*b, "/y"), "not_found");
  sim_.run_for(3s);
  EXPECT_EQ(get(*b, "/x"), "new");
}

TEST_F(SimDiskTest, ABitFlipsForEverybody) {
  const auto a = disk("a");
  put(*a, "/x", "aaaa", true);
  ASSERT_TRUE(a->sync_directory("/").ok());
  ASSERT_TRUE(volume_.flip_bit("/x", 2, 1).ok());
  EXPECT_EQ(get(*a, "/x"), "aaca");
  volume_.lose_power();
  EXPECT_EQ(get(*a, "/x"), "aaca");
  EXPECT_EQ(volume_.flip_bit("/x", 4, 1).error().code(), Code::kInvalid);
  EXPECT_EQ(volume_.flip_bit("/y", 0, 1).error().code(), Code::kNotFound);
}

TEST_F(SimDiskTest, LocksEndWithTheirProcess) {
  SimProcess& first = sim_.process("first");
  SimDisk a(first, "a");
  a.mount("/", volume_);
  const auto b = disk("b");
  bool has_lock = false;
  const Task task = first.spawn("holder", [&](std::stop_token stop) {
    const auto held = a.lock("/lock");
    has_lock = held.ok();
    first.sleep_for(1h, std::move(stop));
  });
  sim_.settle();
  EXPECT_TRUE(has_lock);
  EXPECT_EQ(b->lock("/lock").error().code(), Code::kConflict);
  first.crash();
  {
    const auto held = b->lock("/lock");
    EXPECT_TRUE(held.ok());
    EXPECT_FALSE(b->lock("/lock").ok());
  }
  EXPECT_TRUE(b->lock("/lock").ok());
}

TEST_F(SimDiskTest, AWatchSeesChangesAndMayCrashTheProcess) {
  SimProcess& process = sim_.process("p");
  SimDisk a(process, "a");
  a.mount("/", volume_);
  std::vector<std::string> seen;
  volume_.watch([&](const std::string& operation) {
    seen.push_back(operation);
    if (operation == "sync /x") process.crash();
  });
  const Task task = process.spawn("writer", [&](std::stop_token) { put(a, "/x", "1", true); });
  sim_.settle();
  EXPECT_TRUE(process.crashed());
  EXPECT_EQ(seen, (std::vector<std::string>{"open /x", "write /x", "sync /x"}));
  volume_.watch(nullptr);
  EXPECT_EQ(get(*disk("b"), "/x"), "1") << "the page cache outlives a process";
}

}  // namespace
}  // namespace rubato::testing
