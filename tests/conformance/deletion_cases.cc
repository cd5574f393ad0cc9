// Deletion: preconditions, finalizers, pods and their grace, and garbage collection.
#include "tests/conformance/target.h"

namespace rubato::kube::conformance {
namespace {

using json::Value;

class Deletion : public Conformance {
 protected:
  Value owned(Value object, const Value& owner, bool blocks = true) {
    object.at("metadata")
        .set("ownerReferences", Value::array({Value::object({{"apiVersion", owner["apiVersion"]},
                                                             {"kind", owner["kind"]},
                                                             {"name", name_of(owner)},
                                                             {"uid", uid_of(owner)},
                                                             {"blockOwnerDeletion", blocks}})}));
    return object;
  }
  static DeleteOptions grace(int seconds) {
    DeleteOptions options;
    options.grace_period_seconds = seconds;
    return options;
  }
  static DeleteOptions propagating(const char* how) {
    DeleteOptions options;
    options.propagation = how;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(, Deletion, ::testing::ValuesIn(target_names()), name_of_target);

TEST_P(Deletion, PreconditionsProtect) {
  const Value made = make(kWidget, widget("a"));
  DeleteOptions options;
  options.uid = "00000000-0000-4000-8000-000000000000";
  EXPECT_EQ(said(client().remove(kWidget, key("a"), options).error()),
            "conflict Conflict: Operation cannot be fulfilled on Widget.example.dev \"a\": the UID "
            "in the precondition (00000000-0000-4000-8000-000000000000) does not match the UID in "
            "record (" +
                uid_of(made) + "). The object might have been deleted and then recreated");
  options.uid = uid_of(made);
  options.resource_version = "1";
  EXPECT_EQ(client().remove(kWidget, key("a"), options).error().code(), Code::kConflict);
  options.resource_version = resource_version_of(made);
  EXPECT_TRUE(client().remove(kWidget, key("a"), options).ok());
}

TEST_P(Deletion, AFinalizerHolds) {
  Value object = widget("a");
  object.at("metadata").set("finalizers", Value::array({"example.dev/f"}));
  make(kWidget, object);
  ASSERT_TRUE(client().remove(kWidget, key("a")).ok());
  const auto held = client().get(kWidget, key("a"));
  ASSERT_TRUE(held.ok());
  EXPECT_TRUE((*held)["metadata"].has("deletionTimestamp"));
  EXPECT_EQ((*held)["metadata"]["deletionGracePeriodSeconds"].int_or(-1), 0);
  EXPECT_EQ((*held)["metadata"]["generation"].int_or(0), 2);
  const auto more =
      client().patch(kWidget, key("a"), PatchType::kMerge,
                     parsed(R"({"metadata":{"finalizers":["example.dev/f","example.dev/g"]}})"));
  EXPECT_EQ(said(more.error()),
            "invalid Invalid: Widget.example.dev \"a\" is invalid: metadata.finalizers: Forbidden: "
            "no new finalizers can be added if the object is being deleted, found new finalizers "
            "[]string{\"example.dev/g\"}");
  ASSERT_TRUE(client()
                  .patch(kWidget, key("a"), PatchType::kMerge,
                         parsed(R"({"metadata":{"finalizers":null}})"))
                  .ok());
  EXPECT_FALSE(exists(kWidget, "a"));
}

TEST_P(Deletion, AnUnboundPodGoesAtOnce) {
  make(types::kPod, pod("p"));
  ASSERT_TRUE(client().remove(types::kPod, key("p")).ok());
  EXPECT_FALSE(exists(types::kPod, "p"));
}

TEST_P(Deletion, ABoundPodWaitsForItsNode) {
  make(types::kPod, pod("p"));
  bind("p", "some-node");
  ASSERT_TRUE(client().remove(types::kPod, key("p")).ok());
  const auto terminating = client().get(types::kPod, key("p"));
  ASSERT_TRUE(terminating.ok());
  EXPECT_EQ((*terminating)["metadata"]["deletionGracePeriodSeconds"].int_or(-1), 30);
  EXPECT_TRUE((*terminating)["metadata"].has("deletionTimestamp"));
  ASSERT_TRUE(client().remove(types::kPod, key("p"), grace(5)).ok());
  EXPECT_EQ(
      (*client().get(types::kPod, key("p")))["metadata"]["deletionGracePeriodSeconds"].int_or(-1),
      5);
  ASSERT_TRUE(client().remove(types::kPod, key("p"), grace(0)).ok());
  EXPECT_FALSE(exists(types::kPod, "p"));
}

TEST_P(Deletion, AFinishedPodGoesAtOnce) {
  make(types::kPod, pod("p"));
  bind("p", "some-node");
  WriteOptions status;
  status.subresource = "status";
  ASSERT_TRUE(client()
                  .patch(types::kPod, key("p"), PatchType::kMerge,
                         parsed(R"({"status":{"phase":"Succeeded"}})"), status)
                  .ok());
  ASSERT_TRUE(client().remove(types::kPod, key("p")).ok());
  EXPECT_FALSE(exists(types::kPod, "p"));
}

TEST_P(Deletion, PodsAreBoundOnce) {
  const Value made = make(types::kPod, pod("p"));
  EXPECT_EQ(made["status"]["phase"].string_or(""), "Pending");
  EXPECT_EQ(made["spec"]["schedulerName"].string_or(""), "default-scheduler");
  EXPECT_EQ(made["spec"]["terminationGracePeriodSeconds"].int_or(0), 30);
  bind("p", "n1");
  const auto bound = client().get(types::kPod, key("p"));
  EXPECT_EQ((*bound)["spec"]["nodeName"].string_or(""), "n1");
  EXPECT_EQ((*bound)["status"]["conditions"][0]["type"].string_or(""), "PodScheduled");
  const Value binding =
      Value::object({{"apiVersion", "v1"},
                     {"kind", "Binding"},
                     {"metadata", Value::object({{"name", "p"}, {"namespace", ns()}})},
                     {"target", Value::object({{"kind", "Node"}, {"name", "n2"}})}});
  WriteOptions options;
  options.subresource = "binding";
  EXPECT_EQ(said(client().create(types::kPod, ns(), binding, options).error()),
            "conflict Conflict: Operation cannot be fulfilled on pods/binding \"p\": pod p is "
            "already assigned to node \"n1\"");
  ListOptions on_node;
  on_node.field_selector = "spec.nodeName=n1,metadata.namespace=" + ns();
  EXPECT_EQ(client().list(types::kPod, "", on_node)->items.size(), 1U);
}

TEST_P(Deletion, APodsSpecIsFixed) {
  make(types::kPod, pod("p"));
  const auto changed = client().patch(types::kPod, key("p"), PatchType::kMerge,
                                      parsed(R"({"spec":{"restartPolicy":"Never"}})"));
  ASSERT_FALSE(changed.ok());
  EXPECT_TRUE(
      said(changed.error())
          .starts_with("invalid Invalid: Pod \"p\" is invalid: spec: Forbidden: pod updates "
                       "may not change fields other than `spec.containers[*].image`"))
      << said(changed.error());
}

TEST_P(Deletion, AnEvictionDeletes) {
  make(types::kPod, pod("p"));
  WriteOptions options;
  options.subresource = "eviction";
  const Value eviction =
      Value::object({{"apiVersion", "policy/v1"},
                     {"kind", "Eviction"},
                     {"metadata", Value::object({{"name", "p"}, {"namespace", ns()}})}});
  const auto evicted = client().create(types::kPod, ns(), eviction, options);
  ASSERT_TRUE(evicted.ok()) << evicted.error().to_string();
  EXPECT_FALSE(exists(types::kPod, "p"));
}

TEST_P(Deletion, AnEvictionWithDryRunInItsBodyChangesNothing) {
  const Value made = make(types::kPod, pod("p"));
  WriteOptions options;
  options.subresource = "eviction";
  const Value eviction =  // as `kubectl drain --dry-run=server` sends it
      Value::object({{"apiVersion", "policy/v1"},
                     {"kind", "Eviction"},
                     {"metadata", Value::object({{"name", "p"}, {"namespace", ns()}})},
                     {"deleteOptions", Value::object({{"dryRun", Value::array({"All"})}})}});
  const auto evicted = client().create(types::kPod, ns(), eviction, options);
  ASSERT_TRUE(evicted.ok()) << evicted.error().to_string();
  const auto kept = client().get(types::kPod, key("p"));
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(uid_of(*kept), uid_of(made));
  EXPECT_FALSE((*kept)["metadata"].has("deletionTimestamp"));
}

TEST_P(Deletion, DependentsAreCollected) {
  if (!collects()) GTEST_SKIP() << "no garbage collector runs beside this server";
  const Value owner = make(kWidget, widget("owner"));
  make(kWidget, owned(widget("child"), owner));
  ASSERT_TRUE(client().remove(kWidget, key("owner")).ok());
  EXPECT_TRUE(eventually([&] { return !exists(kWidget, "child"); }));
}

TEST_P(Deletion, ForegroundWaitsForBlockingDependents) {
  if (!collects()) GTEST_SKIP() << "no garbage collector runs beside this server";
  const Value owner = make(kWidget, widget("owner"));
  Value child = owned(widget("child"), owner);
  child.at("metadata").set("finalizers", Value::array({"example.dev/f"}));
  make(kWidget, child);
  // The collector must have seen the child, or it lets the owner go.
  ASSERT_TRUE(eventually([&] {
    const auto removed = client().remove(kWidget, key("owner"), propagating("Foreground"));
    return removed.ok();
  }));
  EXPECT_TRUE(eventually([&] {
    const auto waiting = client().get(kWidget, key("child"));
    return waiting.ok() && (*waiting)["metadata"].has("deletionTimestamp");
  }));
  EXPECT_TRUE(exists(kWidget, "owner"));
  ASSERT_TRUE(client()
                  .patch(kWidget, key("child"), PatchType::kMerge,
                         parsed(R"({"metadata":{"finalizers":null}})"))
                  .ok());
  EXPECT_TRUE(eventually([&] { return !exists(kWidget, "owner"); }));
}

TEST_P(Deletion, OrphansKeepLiving) {
  if (!collects()) GTEST_SKIP() << "no garbage collector runs beside this server";
  const Value owner = make(kWidget, widget("owner"));
  make(kWidget, owned(widget("child"), owner));
  ASSERT_TRUE(client().remove(kWidget, key("owner"), propagating("Orphan")).ok());
  EXPECT_TRUE(eventually([&] { return !exists(kWidget, "owner"); }));
  const auto child = client().get(kWidget, key("child"));
  ASSERT_TRUE(child.ok());
  EXPECT_FALSE((*child)["metadata"].has("ownerReferences"));
}

TEST_P(Deletion, AnObjectOfADeadOwnerIsCollected) {
  if (!collects()) GTEST_SKIP() << "no garbage collector runs beside this server";
  const Value owner = make(kWidget, widget("owner"));
  ASSERT_TRUE(client().remove(kWidget, key("owner")).ok());
  (void)client().create(kWidget, ns(), owned(widget("late"), owner));
  EXPECT_TRUE(eventually([&] { return !exists(kWidget, "late"); }));
}

TEST_P(Deletion, ANamespaceEmptiesAndRefusesNewContent) {
  if (!collects()) GTEST_SKIP() << "no namespace controller runs beside this server";
  Value held = widget("held");
  held.at("metadata").set("finalizers", Value::array({"example.dev/f"}));
  make(kWidget, held);
  make(kWidget, widget("free"));
  ASSERT_TRUE(client().remove(types::kNamespace, {"", ns()}).ok());
  const auto refused = client().create(kWidget, ns(), widget("new"));
  EXPECT_EQ(said(refused.error()),
            "denied NamespaceTerminating: widgets.example.dev \"new\" is forbidden: unable to "
            "create new content in namespace " +
                ns() + " because it is being terminated");
  EXPECT_TRUE(eventually([&] { return !exists(kWidget, "free"); }));
  ASSERT_TRUE(client()
                  .patch(kWidget, key("held"), PatchType::kMerge,
                         parsed(R"({"metadata":{"finalizers":null}})"))
                  .ok());
  EXPECT_TRUE(eventually([&] { return !exists(types::kNamespace, ns()); }));
}

}  // namespace
}  // namespace rubato::kube::conformance
