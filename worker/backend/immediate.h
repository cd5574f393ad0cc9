// Streams and events of devices whose work is done when it has been enqueued.
#pragma once

#include "worker/backend/device.h"

namespace rubato::worker {

class ImmediateStream : public Stream {
 public:
  Status synchronize() override { return ok(); }
};

class ImmediateEvent : public Event {
 public:
  void record(Stream&) override {}
  void hold(Stream&) override {}
  bool is_done() const override { return true; }
  Status wait() override { return ok(); }
};

}  // namespace rubato::worker
