// The LinkNetwork of a simulated worker: links are streams of a SimNetwork. There is no TLS:
// whoever reaches the port is believed to be of the job; LinkHello is checked as ever.
#pragma once

#include "common/testing/sim_stream.h"
#include "worker/collective/link_network.h"

#include <memory>

namespace rubato::sim {

std::unique_ptr<worker::LinkNetwork> make_sim_links(testing::SimProcess& process,
                                                    std::unique_ptr<testing::SimStreams> streams);

}  // namespace rubato::sim
