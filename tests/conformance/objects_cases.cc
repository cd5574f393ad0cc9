// Creating, reading, replacing: metadata, conflicts, selectors, paging.
#include "tests/conformance/target.h"

namespace rubato::kube::conformance {
namespace {

using json::Value;

class Objects : public Conformance {};
INSTANTIATE_TEST_SUITE_P(, Objects, ::testing::ValuesIn(target_names()), name_of_target);

TEST_P(Objects, CreationFillsMetadata) {
  const Value made = make(kWidget, widget("a"));
  const Value& meta = made["metadata"];
  EXPECT_EQ(uid_of(made).size(), 36U);
  EXPECT_FALSE(resource_version_of(made).empty());
  EXPECT_EQ(meta["generation"].int_or(0), 1);
  EXPECT_TRUE(parse_rfc3339(meta["creationTimestamp"].string_or("")).ok());
  EXPECT_EQ(made["spec"]["replicas"].int_or(0), 1);
  const auto read = client().get(kWidget, key("a"));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(resource_version_of(*read), resource_version_of(made));
}

TEST_P(Objects, NamesAreMadeFromAPrefix) {
  Value object = widget("x");
  object.at("metadata").erase("name");
  object.at("metadata").set("generateName", "pre-");
  const Value made = make(kWidget, object);
  EXPECT_TRUE(name_of(made).starts_with("pre-"));
  EXPECT_EQ(name_of(made).size(), 9U);
}

TEST_P(Objects, TwiceIsAlreadyExists) {
  make(kWidget, widget("a"));
  const auto again = client().create(kWidget, ns(), widget("a"));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(said(again.error()),
            "already_exists AlreadyExists: widgets.example.dev \"a\" already exists");
}

TEST_P(Objects, WhatIsMissingIsNotFound) {
  EXPECT_EQ(said(client().get(kWidget, key("no")).error()),
            "not_found NotFound: widgets.example.dev \"no\" not found");
  EXPECT_EQ(said(client().get(types::kPod, key("no")).error()),
            "not_found NotFound: pods \"no\" not found");
  EXPECT_EQ(said(client().remove(kWidget, key("no")).error()),
            "not_found NotFound: widgets.example.dev \"no\" not found");
  const auto patched = client().patch(kWidget, key("no"), PatchType::kMerge, parsed("{}"));
  EXPECT_EQ(said(patched.error()), "not_found NotFound: widgets.example.dev \"no\" not found");
  const ResourceType gadget{"example.dev", "v1", "gadgets", "Gadget", true};
  EXPECT_EQ(client().get(gadget, key("no")).error().code(), Code::kNotFound);
}

TEST_P(Objects, ANamespaceMustExist) {
  Value object = widget("a");
  object.at("metadata").set("namespace", "nowhere");
  EXPECT_EQ(said(client().create(kWidget, "nowhere", object).error()),
            "not_found NotFound: namespaces \"nowhere\" not found");
}

TEST_P(Objects, AnotherNamespaceInTheBodyIsRefused) {
  Value object = widget("a");
  object.at("metadata").set("namespace", "default");
  EXPECT_EQ(said(client().create(kWidget, ns(), object).error()),
            "invalid BadRequest: the namespace of the provided object does not match the namespace "
            "sent on the request");
}

TEST_P(Objects, ABadNameIsInvalid) {
  const std::string rule =
      "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
      "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
      "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
  EXPECT_EQ(said(client().create(kWidget, ns(), widget("Bad_Name")).error()),
            "invalid Invalid: Widget.example.dev \"Bad_Name\" is invalid: metadata.name: Invalid "
            "value: \"Bad_Name\": " +
                rule);
  Value nameless = widget("x");
  nameless.at("metadata").erase("name");
  EXPECT_EQ(said(client().create(kWidget, ns(), nameless).error()),
            "invalid Invalid: Widget.example.dev \"\" is invalid: metadata.name: Required value: "
            "name or generateName is required");
}

TEST_P(Objects, ABadLabelIsInvalid) {
  Value object = widget("a");
  object.at("metadata").set("labels", Value::object({{"k", "no spaces"}}));
  EXPECT_EQ(said(client().create(kWidget, ns(), object).error()),
            "invalid Invalid: Widget.example.dev \"a\" is invalid: metadata.labels: Invalid value: "
            "\"no spaces\": a valid label must be an empty string or consist of alphanumeric "
            "characters, '-', '_' or '.', and must start and end with an alphanumeric character "
            "(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
            "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')");
}

TEST_P(Objects, FinalizersAreNames) {
  for (const char* finalizers : {R"(["a b"])", R"([""])", R"(["orphan","foregroundDeletion"])"}) {
    Value object = widget("a");
    object.at("metadata").set("finalizers", parsed(finalizers));
    const auto made = client().create(kWidget, ns(), object);
    ASSERT_FALSE(made.ok()) << finalizers;
    EXPECT_EQ(made.error().reason(), "Invalid") << finalizers;
  }
}

TEST_P(Objects, ContentsOfConfigMapsAndSecretsAreChecked) {
  const auto refusal = [&](const ResourceType& type, Value data) {
    const auto made = client().create(type, ns(),
                                      Value::object({{"apiVersion", "v1"},
                                                     {"kind", type.kind},
                                                     {"metadata", Value::object({{"name", "a"}})},
                                                     {"data", std::move(data)}}));
    return made.ok() ? "" : said(made.error());
  };
  const std::string rule =
      "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
      "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
      "'[-._a-zA-Z0-9]+')";
  EXPECT_EQ(refusal(types::kSecret, Value::object({{"a/b", "eA=="}})),
            "invalid Invalid: Secret \"a\" is invalid: data[a/b]: Invalid value: \"a/b\": " + rule);
  EXPECT_EQ(refusal(types::kConfigMap, Value::object({{"../x", "y"}})),
            "invalid Invalid: ConfigMap \"a\" is invalid: [data[../x]: Invalid value: \"../x\": " +
                rule + ", data[../x]: Invalid value: \"../x\": must not start with '..']");
  EXPECT_EQ(refusal(types::kConfigMap, Value::object({{"x", std::string(1'048'577, 'x')}})),
            "invalid Invalid: ConfigMap \"a\" is invalid: []: Too long: may not be more than "
            "1048576 bytes");
  EXPECT_TRUE(
      refusal(types::kSecret, Value::object({{"x", "%%%"}}))
          .starts_with("invalid BadRequest: Secret in version \"v1\" cannot be handled as a "
                       "Secret: illegal base64 data"));
}

TEST_P(Objects, AReplacementNeedsThePresentVersion) {
  const Value first = make(kWidget, widget("a"));
  Value next = first;
  next.at("spec").set("image", "img:2");
  const auto second = client().update(kWidget, next);
  ASSERT_TRUE(second.ok()) << second.error().to_string();
  EXPECT_EQ((*second)["metadata"]["generation"].int_or(0), 2);
  EXPECT_EQ(said(client().update(kWidget, next).error()),
            "conflict Conflict: Operation cannot be fulfilled on widgets.example.dev \"a\": the "
            "object has been modified; please apply your changes to the latest version and try "
            "again");
  next.at("metadata").erase("resourceVersion");
  EXPECT_EQ(said(client().update(kWidget, next).error()),
            "invalid Invalid: widgets.example.dev \"a\" is invalid: metadata.resourceVersion: "
            "Invalid value: 0: must be specified for an update");
}

TEST_P(Objects, ARemovedObjectCannotBeReplaced) {
  const Value first = make(kWidget, widget("a"));
  ASSERT_TRUE(client().remove(kWidget, key("a")).ok());
  EXPECT_EQ(client().update(kWidget, first).error().code(), Code::kNotFound);
}

TEST_P(Objects, AnEqualReplacementChangesNothing) {
  const Value first = make(kWidget, widget("a"));
  const auto same = client().update(kWidget, first);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(resource_version_of(*same), resource_version_of(first));
}

TEST_P(Objects, TheServersMetadataStays) {
  const Value first = make(kWidget, widget("a"));
  Value next = first;
  next.at("metadata").set("generation", 77);
  next.at("metadata").set("labels", Value::object({{"k", "v"}}));
  const auto second = client().update(kWidget, next);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)["metadata"]["generation"].int_or(0), 1);
  EXPECT_EQ(uid_of(*second), uid_of(first));
  EXPECT_NE(resource_version_of(*second), resource_version_of(first));
  next.at("metadata").set("uid", "00000000-0000-4000-8000-000000000000");
  next.at("metadata").set("resourceVersion", (*second)["metadata"]["resourceVersion"]);
  EXPECT_EQ(client().update(kWidget, next).error().code(), Code::kConflict);
}

TEST_P(Objects, AVersionOnCreationIsRefused) {
  Value object = widget("a");
  object.at("metadata").set("resourceVersion", "1");
  EXPECT_EQ(said(client().create(kWidget, ns(), object).error()),
            "internal : resourceVersion should not be set on objects to be created");
}

TEST_P(Objects, ADryRunChangesNothing) {
  WriteOptions dry;
  dry.dry_run = true;
  const auto tried = client().create(kWidget, ns(), widget("a"), dry);
  ASSERT_TRUE(tried.ok());
  EXPECT_EQ(uid_of(*tried).size(), 36U);
  EXPECT_FALSE(exists(kWidget, "a"));
  const Value made = make(kWidget, widget("b"));
  const auto patched = client().patch(kWidget, key("b"), PatchType::kMerge,
                                      parsed(R"({"spec":{"replicas":5}})"), dry);
  ASSERT_TRUE(patched.ok());
  EXPECT_EQ((*patched)["spec"]["replicas"].int_or(0), 5);
  EXPECT_EQ(resource_version_of(*client().get(kWidget, key("b"))), resource_version_of(made));
}

TEST_P(Objects, SelectorsChoose) {
  for (const auto& [name, tier] :
       {std::pair("a", "web"), std::pair("b", "db"), std::pair("c", "")}) {
    Value object = widget(name);
    if (*tier != '\0') object.at("metadata").set("labels", Value::object({{"tier", tier}}));
    make(kWidget, object);
  }
  const auto names = [&](const std::string& labels, const std::string& fields) {
    ListOptions options;
    options.label_selector = labels;
    options.field_selector = fields;
    const auto found = client().list(kWidget, ns(), options);
    if (!found.ok()) return said(found.error());
    std::string out;
    for (const Value& item : found->items) out += name_of(item);
    return out;
  };
  EXPECT_EQ(names("", ""), "abc");
  EXPECT_EQ(names("tier=web", ""), "a");
  EXPECT_EQ(names("tier!=web", ""), "bc");
  EXPECT_EQ(names("tier in (web,db)", ""), "ab");
  EXPECT_EQ(names("!tier", ""), "c");
  EXPECT_EQ(names("tier", "metadata.name=b"), "b");
  EXPECT_EQ(names("", "metadata.name!=b"), "ac");
  EXPECT_EQ(names("", "spec.image=x"), "invalid BadRequest: field label not supported: spec.image");
}

TEST_P(Objects, PagesContinue) {
  for (const char* name : {"a", "b", "c", "d", "e"}) make(kWidget, widget(name));
  ListOptions options;
  options.limit = 2;
  std::string names;
  std::string version;
  int pages = 0;
  do {
    const auto page = client().list(kWidget, ns(), options);
    ASSERT_TRUE(page.ok()) << page.error().to_string();
    for (const Value& item : page->items) names += name_of(item);
    if (version.empty()) version = page->resource_version;
    EXPECT_EQ(page->resource_version, version);
    options.continue_token = page->continue_token;
    ++pages;
  } while (!options.continue_token.empty());
  EXPECT_EQ(names, "abcde");
  EXPECT_EQ(pages, 3);
}

TEST_P(Objects, AVersionFromTheFutureTimesOut) {
  ListOptions options;
  options.resource_version = "999999999999";
  const auto found = client().list(kWidget, ns(), options);
  ASSERT_FALSE(found.ok());
  // A REST client asks again, as the real server tells it to, until its own time is over.
  const Code code = found.error().code();
  EXPECT_TRUE(code == Code::kExpired || code == Code::kTimeout) << found.error().to_string();
}

TEST_P(Objects, BuiltInKindsMayBeReplacedWithoutAVersion) {
  const Value config =
      Value::object({{"apiVersion", "v1"},
                     {"kind", "ConfigMap"},
                     {"metadata", Value::object({{"name", "c"}, {"namespace", ns()}})},
                     {"data", Value::object({{"k", "v"}})}});
  make(types::kConfigMap, config);
  Value next = config;
  next.at("data").set("k", "w");
  EXPECT_TRUE(client().update(types::kConfigMap, next).ok());
}

TEST_P(Objects, LeasesNeedAVersionAndMayBeCreatedByReplacing) {
  const Value lease =
      Value::object({{"apiVersion", "coordination.k8s.io/v1"},
                     {"kind", "Lease"},
                     {"metadata", Value::object({{"name", "l"}, {"namespace", ns()}})},
                     {"spec", Value::object({{"holderIdentity", "me"},
                                             {"leaseDurationSeconds", 15},
                                             {"renewTime", "2026-11-21T07:38:29.000000Z"}})}});
  const auto made = client().update(types::kLease, lease);
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  Value next = *made;
  next.at("spec").set("holderIdentity", "you");
  ASSERT_TRUE(client().update(types::kLease, next).ok());
  EXPECT_EQ(client().update(types::kLease, next).error().code(), Code::kConflict);
  EXPECT_EQ(client().update(types::kLease, lease).error().code(), Code::kInvalid);
}

TEST_P(Objects, StorageClassesBindAtOnceUnlessTheySayOtherwise) {
  const auto storage_class = [&](const char* name) {
    return Value::object({{"apiVersion", "storage.k8s.io/v1"},
                          {"kind", "StorageClass"},
                          {"metadata", Value::object({{"name", ns() + "-" + name}})},
                          {"provisioner", "disk.example"}});
  };
  const auto made = client().create(types::kStorageClass, "", storage_class("a"));
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  EXPECT_EQ((*made)["volumeBindingMode"].string_or(""), "Immediate");
  EXPECT_EQ((*made)["reclaimPolicy"].string_or(""), "Delete");
  Value next = *made;
  next.set("volumeBindingMode", "WaitForFirstConsumer");
  EXPECT_EQ(client().update(types::kStorageClass, next).error().code(), Code::kInvalid);
  Value nobody = storage_class("b");
  nobody.erase("provisioner");
  EXPECT_EQ(client().create(types::kStorageClass, "", nobody).error().code(), Code::kInvalid);
  EXPECT_TRUE(client().remove(types::kStorageClass, {"", ns() + "-a"}).ok());
}

TEST_P(Objects, SecretsTakePlainTextOnce) {
  const Value secret =
      Value::object({{"apiVersion", "v1"},
                     {"kind", "Secret"},
                     {"metadata", Value::object({{"name", "s"}, {"namespace", ns()}})},
                     {"stringData", Value::object({{"k", "hello"}})}});
  const Value made = make(types::kSecret, secret);
  EXPECT_EQ(made["data"]["k"].string_or(""), "aGVsbG8=");
  EXPECT_EQ(made["type"].string_or(""), "Opaque");
  EXPECT_FALSE(made.has("stringData"));
  Value next = secret;
  next.erase("stringData");
  next.set("data", Value::object({{"other", "aGVsbG8="}}));
  const auto replaced = client().update(types::kSecret, next);  // whatever it was before
  ASSERT_TRUE(replaced.ok()) << replaced.error().to_string();
  EXPECT_EQ((*replaced)["data"].size(), 1U);
  EXPECT_EQ((*replaced)["type"].string_or(""), "Opaque");
  next.set("type", "example.dev/other");
  EXPECT_EQ(client().update(types::kSecret, next).error().code(), Code::kInvalid);
}

TEST_P(Objects, EventsHaveTwoFaces) {
  const ResourceType core{"", "v1", "events", "Event", true};
  const Value event = Value::object(
      {{"apiVersion", "events.k8s.io/v1"},
       {"kind", "Event"},
       {"metadata", Value::object({{"name", "e"}, {"namespace", ns()}})},
       {"eventTime", "2026-11-21T07:38:29.000000Z"},
       {"reportingController", "example.dev/suite"},
       {"reportingInstance", "one"},
       {"action", "Testing"},
       {"reason", "Because"},
       {"type", "Normal"},
       {"note", "a note"},
       {"regarding", Value::object({{"kind", "Widget"}, {"name", "w"}, {"namespace", ns()}})}});
  make(types::kEvent, event);
  const auto seen = client().get(core, key("e"));
  ASSERT_TRUE(seen.ok());
  EXPECT_EQ((*seen)["message"].string_or(""), "a note");
  EXPECT_EQ((*seen)["involvedObject"]["name"].string_or(""), "w");
  EXPECT_EQ((*seen)["reportingComponent"].string_or(""), "example.dev/suite");
  for (const char* time : {"firstTimestamp", "lastTimestamp"})
    EXPECT_TRUE(seen->has(time) && (*seen)[time].is_null()) << time;  // kubectl sorts by them
  const auto other = client().get(types::kEvent, key("e"));
  EXPECT_TRUE(other->has("deprecatedLastTimestamp"));
  EXPECT_EQ((*other)["eventTime"].string_or(""), "2026-11-21T07:38:29.000000Z");
  ListOptions options;
  options.field_selector = "involvedObject.name=w,reason=Because,type=Normal";
  EXPECT_EQ(client().list(core, ns(), options)->items.size(), 1U);
  options.field_selector = "involvedObject.name=other";
  EXPECT_EQ(client().list(core, ns(), options)->items.size(), 0U);
}

}  // namespace
}  // namespace rubato::kube::conformance
