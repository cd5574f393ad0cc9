// What an API server and a kubeconfig say: answers of HTTP, lines of a watch, objects.
#include "kube/http1.h"
#include "kube/kubeconfig.h"
#include "kube/objects/node.h"
#include "kube/objects/pod.h"
#include "kube/rest_transport.h"
#include "tests/fuzz/fuzz.h"

#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace rubato {

// However an answer is cut into pieces, it is read as the same.
FUZZ_TARGET(http1) {
  fuzz::Choices choices(input);
  const unsigned piece = choices.byte() % 16 + 1;
  const std::string_view answer = choices.rest();
  kube::Http1Decoder whole;
  kube::Http1Decoder cut;
  std::string body;
  std::string cut_body;
  const bool is_fine = whole.feed(answer, body).ok();
  bool cut_fine = true;
  for (std::size_t at = 0; at < answer.size() && cut_fine; at += piece)
    cut_fine = cut.feed(answer.substr(at, piece), cut_body).ok();
  CHECK_EQ(is_fine, cut_fine);
  if (!is_fine) return;
  CHECK(body == cut_body && whole.status() == cut.status());
  CHECK_EQ(whole.is_complete(), cut.is_complete());
  CHECK_EQ(whole.end().ok(), cut.end().ok());
}

FUZZ_TARGET(watch_line) {
  const auto event = kube::parse_watch_line(input);
  if (!event.ok()) return;
  (void)event->object();
  if (event->raw.empty()) return;
  (void)kube::Pod::decode_raw(event->raw);
  (void)kube::Node::decode_raw(event->raw);
}

// The projections, from bytes and from values.
FUZZ_TARGET(objects) {
  (void)kube::Pod::decode_raw(input);
  (void)kube::Node::decode_raw(input);
  const auto value = json::parse(input);
  if (!value.ok()) return;
  (void)kube::Pod::decode(*value);
  (void)kube::Node::decode(*value);
}

FUZZ_TARGET(kubeconfig) {
  static const int fd = ::memfd_create("kubeconfig", 0);
  CHECK(fd >= 0 && ::ftruncate(fd, 0) == 0);
  CHECK(::pwrite(fd, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  (void)kube::load_kubeconfig({.path = "/proc/self/fd/" + std::to_string(fd), .context = ""});
}

}  // namespace rubato
