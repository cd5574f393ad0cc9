#include "apiserver/memory/merge.h"

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

json::Value parsed(const char* text) { return json::parse(text).value(); }

TEST(Merge, StrategicMergesContainersByName) {
  auto target = parsed(R"({"spec":{"containers":[{"name":"a","image":"1"},{"name":"b","image":"1"}],
                                   "tolerations":[{"key":"x"}]}})");
  merge::strategic(target, parsed(R"({"spec":{
      "$setElementOrder/containers":[{"name":"b"}],
      "containers":[{"name":"b","image":"2"},{"name":"a","$patch":"delete"}],
      "tolerations":[{"key":"y"}]}})"));
  EXPECT_EQ(json::dump(target),
            R"({"spec":{"containers":[{"name":"b","image":"2"}],"tolerations":[{"key":"y"}]}})");
}

TEST(Merge, StrategicDeletesFromSetsAndReplacesMaps) {
  auto target = parsed(R"({"metadata":{"finalizers":["a","b"],"labels":{"x":"1","y":"2"}}})");
  merge::strategic(target, parsed(R"({"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],
      "finalizers":["c"],"labels":{"$patch":"replace","z":"3"}}})"));
  EXPECT_EQ(json::dump(target), R"({"metadata":{"finalizers":["b","c"],"labels":{"z":"3"}}})");
}

TEST(Merge, ApplyMergesListMapsBySchemaAndRemovesNothing) {
  const auto schema = parsed(R"({"properties":{"spec":{"properties":{
      "ports":{"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{}},
      "words":{"items":{}}}}}})");
  auto target =
      parsed(R"({"spec":{"ports":[{"name":"a","port":1},{"name":"b"}],"words":["x"],"k":1}})");
  merge::apply(target, parsed(R"({"spec":{"ports":[{"name":"a","port":2}],"words":["y"]}})"),
               schema);
  EXPECT_EQ(json::dump(target),
            R"({"spec":{"ports":[{"name":"a","port":2},{"name":"b"}],"words":["y"],"k":1}})");
}

}  // namespace
}  // namespace rubato::kube
