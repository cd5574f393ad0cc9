// RestClient against a scripted server on loopback, without TLS: rest_tls_test.cc.
#include "kube/errors.h"
#include "rest_fixture.h"

#include <atomic>

namespace rubato::kube {
namespace {

using Connection = ScriptedServer::Connection;

constexpr auto kLong = 60s;  // no step here needs a second

TEST_F(Rest, RequestsAreWhatKubernetesExpects) {
  std::mutex mutex;
  std::vector<std::string> requests;
  ScriptedServer server(answering([&](const std::string& request) {
    std::lock_guard lock(mutex);
    requests.push_back(request);
    return http_answer(200, pod("p", 1));
  }));
  const auto client = connect(plain(server));
  json::Value object = json::parse(pod("p", 1)).value();
  ASSERT_TRUE(client->get(types::kPod, {"a", "p"}, "").ok());
  ASSERT_TRUE(client->create(types::kPod, "a", object, {}).ok());
  WriteOptions binding;
  binding.subresource = "binding";
  ASSERT_TRUE(client->create(types::kPod, "a", object, binding).ok());
  ASSERT_TRUE(client->update(types::kPod, object, {}).ok());
  WriteOptions status;
  status.subresource = "status";
  status.force = true;
  status.field_manager = "m";
  ASSERT_TRUE(client->patch(types::kPod, {"a", "p"}, PatchType::kApply, object, status).ok());
  DeleteOptions gone;
  gone.uid = "u";
  gone.grace_period_seconds = 0;
  ASSERT_TRUE(client->remove(types::kPod, {"a", "p"}, gone).ok());
  ASSERT_EQ(requests.size(), 6u);
  const auto begins = [&](std::size_t i, const std::string& text) {
    EXPECT_EQ(requests[i].substr(0, text.size()), text);
  };
  begins(0, "GET /api/v1/namespaces/a/pods/p HTTP/1.1\r\n");
  begins(1, "POST /api/v1/namespaces/a/pods?fieldManager=rubato-operator HTTP/1.1\r\n");
  begins(2, "POST /api/v1/namespaces/a/pods/p/binding?");
  begins(3, "PUT /api/v1/namespaces/a/pods/p?");
  begins(4, "PATCH /api/v1/namespaces/a/pods/p/status?fieldManager=m&force=true HTTP/1.1\r\n");
  begins(5, "DELETE /api/v1/namespaces/a/pods/p HTTP/1.1\r\n");
  EXPECT_NE(requests[0].find("Authorization:Bearer t\r\n"), std::string::npos);
  EXPECT_NE(requests[0].find("User-Agent:rubato"), std::string::npos);
  EXPECT_NE(requests[1].find("Content-Type:application/json"), std::string::npos);
  EXPECT_NE(requests[4].find("Content-Type:application/apply-patch+yaml"), std::string::npos);
  EXPECT_NE(requests[5].find(R"("uid":"u")"), std::string::npos);
  EXPECT_LE(server.connections(), 3);  // connections are kept
}

// A DELETE on the path without a name would be one of everything.
TEST_F(Rest, OneObjectWithoutItsNameIsNotAskedFor) {
  ScriptedServer server(answering([](const std::string&) { return http_answer(200, "{}"); }));
  const auto client = connect(plain(server));
  WriteOptions eviction;
  eviction.subresource = "eviction";
  for (const Key& key : {Key{"a", ""}, Key{"a", "."}, Key{"a", ".."}, Key{"..", "p"}}) {
    json::Value object = json::parse(pod(key.name, 1)).value();
    object.at("metadata").set("namespace", key.ns);
    EXPECT_EQ(client->get(types::kPod, key, "").error().code(), Code::kInvalid);
    EXPECT_EQ(client->create(types::kPod, key.ns, object, eviction).error().code(), Code::kInvalid);
    EXPECT_EQ(client->update(types::kPod, object, {}).error().code(), Code::kInvalid);
    EXPECT_EQ(client->patch(types::kPod, key, PatchType::kMerge, object, {}).error().code(),
              Code::kInvalid);
    EXPECT_EQ(client->remove(types::kPod, key, {}).error().code(), Code::kInvalid);
  }
  EXPECT_EQ(server.connections(), 0);
}

TEST_F(Rest, FailuresAreErrors) {
  std::atomic<int> code{404};
  ScriptedServer server(answering([&](const std::string&) {
    return http_answer(code, json::dump(make_status(code, "NotFound", "no such pod")));
  }));
  const auto client = connect(plain(server));
  const auto missing = client->get(types::kPod, {"a", "p"}, "");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_EQ(missing.error().reason(), "NotFound");
  EXPECT_EQ(connect("http://127.0.0.1:1")->get(types::kPod, {"a", "p"}, "").error().code(),
            Code::kUnavailable);
}

TEST_F(Rest, DeadlineEndsARequest) {
  ScriptedServer server([](Connection& connection) {
    (void)connection.read_request();
    connection.wait_for_close();
  });
  options.limits.timeout = std::chrono::seconds(1);
  const auto client = connect(plain(server));
  EXPECT_EQ(client->get(types::kPod, {"a", "p"}, "").error().code(), Code::kTimeout);
}

TEST_F(Rest, RefusedTokenIsReadAgainOnce) {
  std::atomic<int> count{0};
  ScriptedServer server(answering([&](const std::string&) {
    return ++count == 1 ? http_answer(401, json::dump(make_status(401, "Unauthorized", "who?")))
                        : http_answer(200, pod("p", 1));
  }));
  const auto client = connect(plain(server));
  EXPECT_TRUE(client->get(types::kPod, {"a", "p"}, "").ok());
  EXPECT_EQ(count, 2);
}

TEST_F(Rest, RetryAfterIsHonoured) {
  std::atomic<int> count{0};
  ScriptedServer server(answering([&](const std::string& request) {
    const bool busy = ++count <= 2 || request.substr(0, 3) == "PUT";
    if (!busy) return http_answer(200, pod("p", 1));
    const int code = request.substr(0, 3) == "PUT" ? 503 : 429;
    return http_answer(code, json::dump(make_status(code, "Busy", "later")), "Retry-After: 0\r\n");
  }));
  const auto client = connect(plain(server));
  EXPECT_TRUE(client->get(types::kPod, {"a", "p"}, "").ok());
  EXPECT_EQ(count, 3);
  // A write that may have been done is not repeated.
  const auto object = json::parse(pod("p", 1)).value();
  EXPECT_EQ(client->update(types::kPod, object, {}).error().code(), Code::kUnavailable);
  EXPECT_EQ(count, 4);
}

TEST_F(Rest, UnexplainedPatchFailureIsExplained) {
  ScriptedServer server(answering([&](const std::string& request) {
    if (request.substr(0, 3) == "GET") return http_answer(200, pod("p", 7));
    return http_answer(422, json::dump(make_status(422, "Invalid",
                                                   "the server rejected our request due to an "
                                                   "error in our request")));
  }));
  const auto client = connect(plain(server));
  const auto patch = [&](const char* text) {
    return client->patch(types::kPod, {"a", "p"}, PatchType::kJson, json::parse(text).value(), {})
        .error();
  };
  const Error test = patch(R"([{"op":"test","path":"/metadata/resourceVersion","value":"6"}])");
  EXPECT_EQ(test.code(), Code::kConflict);
  EXPECT_EQ(test.reason(), "TestFailed");
  EXPECT_EQ(patch(R"([{"op":"test","path":"/metadata/resourceVersion","value":"7"},
                      {"op":"remove","path":"/spec/none"}])")
                .code(),
            Code::kInvalid);
  EXPECT_EQ(patch(R"([{"op":"remove","path":"/spec/none"}])").code(), Code::kInvalid);
}

TEST_F(Rest, RawLists) {
  const std::string body =
      R"({"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9",)"
      R"("continue":"t"},"items":[)" +
      pod("a", 1) + ", " + pod("b", 2) + "]}";
  ScriptedServer server(answering([&](const std::string&) { return http_answer(200, body); }));
  const auto client = connect(plain(server));
  ListOptions raw;
  raw.raw = true;
  const auto bytes = client->list(types::kPod, "", raw);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes->raw_items, (std::vector<std::string>{pod("a", 1), pod("b", 2)}));
  EXPECT_EQ(bytes->resource_version, "9");
  EXPECT_EQ(bytes->continue_token, "t");
  const auto values = client->list(types::kPod, "", {});
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->items.size(), 2u);
  EXPECT_EQ(values->resource_version, "9");
  EXPECT_TRUE(
      split_list(R"({"items":null,"metadata":{"resourceVersion":"1"}})")->raw_items.empty());
  for (const char* bad : {"", "[]", "{", R"({"items":[{]})", R"({"items":[{})", R"({"items":"x)",
                          R"({"items":[{"a":"]}]})", R"({"items" [1]})", R"({"metadata":{)"})
    EXPECT_FALSE(split_list(bad).ok()) << bad;
  const auto odd = split_list(R"({ "items" : [ {"a":"\\\"}]{["} , [1,[2]] ,3] })");
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(odd->raw_items, (std::vector<std::string>{R"({"a":"\\\"}]{["})", "[1,[2]]", "3"}));
}

TEST_F(Rest, WatchThroughOddChunks) {
  const std::string text = event("ADDED", pod("p", 1)) + "\n" + event("MODIFIED", pod("p", 2)) +
                           event("DELETED", pod("p", 3)) + "{ \"object\": " + pod("q", 4) +
                           ", \"type\": \"BOOKMARK\" }\n";
  ScriptedServer server([&](Connection& connection) {
    const std::string request = connection.read_request();
    EXPECT_NE(request.find("watch=1"), std::string::npos);
    EXPECT_NE(request.find("resourceVersion=5"), std::string::npos);
    EXPECT_NE(request.find("allowWatchBookmarks=true"), std::string::npos);
    connection.write(chunked_head());
    for (std::size_t i = 0; i < text.size(); i += 7) connection.write(chunk(text.substr(i, 7)));
    connection.write(last_chunk());
  });
  const auto client = connect(plain(server));
  WatchOptions watch_options;
  watch_options.resource_version = "5";
  auto watch = client->watch(types::kPod, "", watch_options);
  ASSERT_TRUE(watch.ok()) << watch.error().to_string();
  for (const auto& [type, version] :
       {std::pair(EventType::kAdded, "1"), std::pair(EventType::kModified, "2"),
        std::pair(EventType::kDeleted, "3"), std::pair(EventType::kBookmark, "4")}) {
    const auto next = (*watch)->next(executor.now() + kLong);
    ASSERT_TRUE(next.ok()) << next.error().to_string();
    EXPECT_EQ(next->type, type);
    EXPECT_EQ(resource_version_of(next->object().value()), version);
  }
  EXPECT_EQ((*watch)->next(executor.now() + kLong).error().code(), Code::kUnavailable);
}

TEST_F(Rest, LinesOfALongAnswer) {
  ScriptedServer server([&](Connection& connection) {
    const std::string request = connection.read_request();
    EXPECT_NE(request.find("GET /api/v1/x/log?follow=true"), std::string::npos);
    EXPECT_NE(request.find("Accept: text/plain"), std::string::npos);
    connection.write(chunked_head() + chunk("one\n\ntw") + chunk("o\nlast") + last_chunk());
  });
  const auto client = connect(plain(server));
  auto stream = client->stream("/api/v1/x/log?follow=true", "text/plain");
  ASSERT_TRUE(stream.ok()) << stream.error().to_string();
  for (const char* line : {"one", "", "two", "last"})  // the last without its newline
    EXPECT_EQ((*stream)->next(executor.now() + kLong).value(), line);
  const auto end = (*stream)->next(executor.now() + kLong);
  EXPECT_EQ(end.error().code(), Code::kUnavailable);
  EXPECT_EQ(end.error().reason(), kStreamEnd);
}

TEST_F(Rest, WatchErrors) {
  ScriptedServer gone(answering([](const std::string&) {
    return http_answer(410, json::dump(make_status(410, "Expired", "too old")));
  }));
  EXPECT_EQ(connect(plain(gone))->watch(types::kPod, "", {}).error().code(), Code::kExpired);

  ScriptedServer later([](Connection& connection) {
    (void)connection.read_request();
    connection.write(chunked_head() +
                     chunk(event("ERROR", json::dump(make_status(410, "Expired", "too old")))));
    connection.wait_for_close();
  });
  const auto client = connect(plain(later));
  auto watch = client->watch(types::kPod, "", {});
  ASSERT_TRUE(watch.ok());
  EXPECT_EQ((*watch)->next(executor.now() + kLong).error().code(), Code::kExpired);
  // Silence: the deadline passes and the watch goes on; stop() ends a wait.
  EXPECT_EQ((*watch)->next(executor.now() + 20ms).error().code(), Code::kTimeout);
  Task stopper = executor.spawn("stop", [&](std::stop_token) { (*watch)->stop(); });
  EXPECT_EQ((*watch)->next(executor.now() + kLong).error().code(), Code::kCancelled);
}

// etcd holds an object of 1.5 MiB, in which each character may take six bytes of JSON.
TEST_F(Rest, TheLargestEventThatThereMayBeArrives) {
  std::string large;
  for (int i = 0; i < (3 << 19); ++i) large += "\\u003c";
  ScriptedServer server([&](Connection& connection) {
    (void)connection.read_request();
    connection.write(chunked_head() +
                     chunk(event("ADDED", R"({"metadata":{"name":")" + large + R"("}})")));
    connection.wait_for_close();
  });
  const auto client = connect(plain(server));
  auto watch = client->watch(types::kPod, "", {});
  ASSERT_TRUE(watch.ok());
  const auto got = (*watch)->next(executor.now() + kLong);
  EXPECT_TRUE(got.ok()) << got.error().to_string();
}

// Something on the way keeps the connection open and swallows everything.
TEST_F(Rest, AWatchThatOutlivesItsTimeIsDead) {
  ScriptedServer server([](Connection& connection) {
    EXPECT_NE(connection.read_request().find("timeoutSeconds=1"), std::string::npos);
    connection.write(chunked_head() + chunk(event("ADDED", pod("p", 1))));
    connection.wait_for_close();
  });
  options.watch_overdue = 50ms;
  const auto client = connect(plain(server));
  WatchOptions watch_options;
  watch_options.timeout = std::chrono::seconds(1);
  auto watch = client->watch(types::kPod, "", watch_options);
  ASSERT_TRUE(watch.ok());
  ASSERT_TRUE((*watch)->next(executor.now() + kLong).ok());
  const auto end = (*watch)->next(executor.now() + kLong);
  EXPECT_EQ(end.error().code(), Code::kUnavailable) << end.error().to_string();
}

// Bytes keep coming, the event does not: that is no life.
TEST_F(Rest, AnEventThatCreepsIsGivenUp) {
  ScriptedServer server([](Connection& connection) {
    (void)connection.read_request();
    connection.write(chunked_head() + chunk(event("ADDED", pod("p", 1)) + R"({"type":"ADD)"));
    while (connection.write(chunk("E"))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  options.watch_line_limit = 100ms;
  const auto client = connect(plain(server));
  auto watch = client->watch(types::kPod, "", {});
  ASSERT_TRUE(watch.ok());
  ASSERT_TRUE((*watch)->next(executor.now() + kLong).ok());
  EXPECT_EQ((*watch)->next(executor.now() + kLong).error().code(), Code::kUnavailable);
}

TEST_F(Rest, WritesHaveADeadlineOfTheirOwn) {
  ScriptedServer server([](Connection& connection) {
    (void)connection.read_request();
    connection.wait_for_close();
  });
  options.limits.timeout = kLong;
  options.limits.write_timeout = 50ms;
  const auto client = connect(plain(server));
  const MonoTime began = executor.now();
  const auto made = client->create(types::kPod, "a", json::parse(pod("p", 1)).value(), {});
  EXPECT_EQ(made.error().code(), Code::kTimeout);
  EXPECT_TRUE(may_have_happened(made.error()));
  EXPECT_LT(executor.now() - began, kLong);
}

// A plugin that takes longer than the write may: whoever asked may not write any more.
TEST_F(Rest, WhatItsCredentialsMadeLateIsNotSent) {
  std::atomic<int> requests = 0;
  ScriptedServer server(answering([&](const std::string&) {
    ++requests;
    return http_answer(201, pod("p", 1));
  }));
  RestConfig config;
  config.server = plain(server);
  config.credentials.exec =
      ExecPlugin{.api_version = "client.authentication.k8s.io/v1",
                 .command = "/bin/sh",
                 .args = {"-c", R"(sleep 0.2; echo '{"kind":"ExecCredential","apiVersion":)"
                                R"("client.authentication.k8s.io/v1","status":{"token":"t"}}')"}};
  options.limits.write_timeout = 50ms;
  const auto client = connect(config);
  const auto made = client->create(types::kPod, "a", json::parse(pod("p", 1)).value(), {});
  EXPECT_EQ(made.error().code(), Code::kTimeout) << made.error().to_string();
  EXPECT_EQ(requests, 0);
}

// A page of a captive portal, or half an object that looked whole: no fault of the request.
TEST_F(Rest, AnswersThatAreNotJsonMayBeAskedForAgain) {
  ScriptedServer server(answering(
      [](const std::string&) { return http_answer(200, R"({"kind":"Pod","metadata":{"na)"); }));
  const auto client = connect(plain(server));
  EXPECT_EQ(client->get(types::kPod, {"a", "p"}, "").error().code(), Code::kInternal);
  EXPECT_EQ(client->list(types::kPod, "a", {}).error().code(), Code::kInternal);
  ListOptions raw;
  raw.raw = true;
  EXPECT_EQ(client->list(types::kPod, "a", raw).error().code(), Code::kInternal);
}

// The server writes as long as the kernel takes it; the reader takes nothing. What was taken must
// be bounded by socket buffers, and everything must still arrive in order afterwards.
TEST_F(Rest, ASlowReaderStopsTheServer) {
  constexpr int kEvents = 20000;
  const std::string filler(3000, 'x');
  std::string text = chunked_head();
  for (int i = 0; i < kEvents; ++i) {
    text += chunk(event("MODIFIED", R"({"metadata":{"resourceVersion":")" + std::to_string(i) +
                                        R"(","name":"p"},"f":")" + filler + "\"}"));
  }
  text += last_chunk();
  std::atomic<std::size_t> before{0};
  std::atomic<bool> full{false};
  ScriptedServer server([&](Connection& connection) {
    (void)connection.read_request();
    std::string_view rest = text;
    for (int quiet = 0; quiet < 50;) {
      const std::size_t count = connection.write_now(rest);
      rest.remove_prefix(count);
      quiet = count == 0 ? quiet + 1 : 0;
      if (count == 0) std::this_thread::yield();
    }
    before = text.size() - rest.size();
    full = true;
    connection.write(rest);
  });
  const auto client = connect(plain(server));
  auto watch = client->watch(types::kPod, "", {.timeout = 10min});  // its text is its end
  ASSERT_TRUE(watch.ok());
  ASSERT_TRUE((*watch)->next(executor.now() + kLong).ok());  // reads one buffer
  const MonoTime limit = executor.now() + kLong;
  while (!full && executor.now() < limit) std::this_thread::yield();
  ASSERT_TRUE(full);
  EXPECT_LT(before, text.size() / 2);
  for (int i = 1; i < kEvents; ++i) {
    const auto next = (*watch)->next(executor.now() + kLong);
    ASSERT_TRUE(next.ok()) << i << next.error().to_string();
    ASSERT_EQ(resource_version_of(next->object().value()), std::to_string(i));
  }
  EXPECT_EQ((*watch)->next(executor.now() + kLong).error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace rubato::kube
