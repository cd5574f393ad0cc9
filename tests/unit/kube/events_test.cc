#include "kube/events.h"

#include "sim_fixture.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

ObjectReference about(const std::string& name) {
  return ObjectReference{"rubato.dev/v1alpha1", "TrainingJob", "default", name, "uid-" + name, ""};
}

EventText rescaled(const std::string& note) {
  return EventText{EventLevel::kNormal, "Rescaled", "Rescaling", note};
}

std::vector<json::Value> events_in(SimWorld& world) {
  return world.server.list(types::kEvent, "default", {}).value().items;
}

struct Events : ::testing::Test {
  Events() {
    EventRecorderConfig config;
    config.instance = "operator-0";
    recorder = std::make_unique<EventRecorder>(world.client, world.home, world.metrics, config);
    recorder->start();
  }
  SimWorld world{1};
  std::unique_ptr<EventRecorder> recorder;
};

TEST_F(Events, SaysWhatHappened) {
  recorder->emit(about("job"), rescaled("from 4 to 6"));
  world.sim.run_for(1s);
  const auto events = events_in(world);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["regarding"]["name"].string_or(""), "job");
  EXPECT_EQ(events[0]["reason"].string_or(""), "Rescaled");
  EXPECT_EQ(events[0]["note"].string_or(""), "from 4 to 6");
  EXPECT_EQ(events[0]["reportingInstance"].string_or(""), "operator-0");
  EXPECT_EQ(name_of(events[0]).substr(0, 4), "job.");
}

TEST_F(Events, EqualOnesBecomeASeries) {
  for (int i = 0; i < 5; ++i) {
    recorder->emit(about("job"), rescaled("same"));
    world.sim.run_for(10s);
  }
  ASSERT_EQ(events_in(world).size(), 1u);
  EXPECT_EQ(events_in(world)[0]["series"]["count"].int_or(0), 2);  // later ones only count here
  world.sim.run_for(std::chrono::minutes(8));  // silence: the series is written and forgotten
  EXPECT_EQ(events_in(world)[0]["series"]["count"].int_or(0), 5);
  recorder->emit(about("job"), rescaled("same"));
  world.sim.run_for(1s);
  EXPECT_EQ(events_in(world).size(), 2u);
}

// Names must differ; times need not.
TEST_F(Events, TimesAreThoseOfTheClockThoughItWasAhead) {
  world.home.skew(Duration(0), 24h);
  recorder->emit(about("job"), rescaled("ahead"));
  world.sim.run_for(1s);
  world.home.skew(Duration(0), -24h);
  const WallTime corrected = world.home.clock().wall();
  recorder->emit(about("job"), rescaled("right"));
  recorder->emit(about("job"), rescaled("and again"));
  world.sim.run_for(1s);
  const auto events = events_in(world);
  ASSERT_EQ(events.size(), 3u);
  for (const json::Value& event : events) {
    const WallTime when = parse_rfc3339(event["eventTime"].string_or("")).value();
    EXPECT_EQ(when > corrected + 1h, event["note"].string_or("") == "ahead") << json::dump(event);
  }
}

// `kubectl delete events --all`, or a store from before it.
TEST_F(Events, ASeriesWhoseEventIsGoneComesBack) {
  const auto emit = [&] {
    recorder->emit(about("job"), rescaled("same"));
    world.sim.run_for(std::chrono::minutes(5));
  };
  const auto remove_all = [&] {
    for (const json::Value& event : events_in(world))
      ASSERT_TRUE(
          world.server.remove(types::kEvent, {"default", name_of(event)}, DeleteOptions{}).ok());
  };
  emit();
  remove_all();
  emit();  // the second makes it a series
  EXPECT_EQ(events_in(world).size(), 1u);
  emit();
  remove_all();
  for (int i = 0; i < 7; ++i) emit();  // it is written again every half hour
  EXPECT_EQ(events_in(world).size(), 1u);
}

TEST_F(Events, ATalkativeObjectIsCutOff) {
  for (int i = 0; i < 100; ++i) recorder->emit(about("loud"), rescaled(std::to_string(i)));
  recorder->emit(about("quiet"), rescaled("one"));
  world.sim.run_for(1s);
  EXPECT_EQ(events_in(world).size(), 26u);
}

TEST_F(Events, HowATalkativeObjectEndedIsHeard) {
  for (int i = 0; i < 100; ++i) recorder->emit(about("loud"), rescaled(std::to_string(i)));
  recorder->emit(about("loud"), {EventLevel::kNormal, "StepsReached", "Complete", "done", true});
  world.sim.run_for(1s);
  const auto events = events_in(world);
  EXPECT_EQ(events.size(), 26u);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const json::Value& event) {
    return event["reason"].string_or("") == "StepsReached";
  }));
}

TEST_F(Events, LongNotesAreCutAtACharacter) {
  std::string note(kEventNoteBytesMax - 1, 'x');
  recorder->emit(about("job"), rescaled(note + "\u00e9\u00e9"));
  world.sim.run_for(1s);
  ASSERT_EQ(events_in(world).size(), 1u);
  EXPECT_EQ(events_in(world)[0]["note"].string_or(""), note);
}

TEST_F(Events, SentWhenTheServerIsBack) {
  world.client.disconnect();
  recorder->emit(about("job"), rescaled("late"));
  world.sim.run_for(25s);
  EXPECT_TRUE(events_in(world).empty());
  world.client.reconnect();
  bool flushed = false;
  Task task = world.home.spawn(
      "flush", [&](std::stop_token) { flushed = recorder->flush(world.home.now() + 60s); });
  ASSERT_TRUE(world.sim.run_until([&] { return flushed; }, 60s));
  EXPECT_EQ(events_in(world).size(), 1u);
}

}  // namespace
}  // namespace rubato::kube
