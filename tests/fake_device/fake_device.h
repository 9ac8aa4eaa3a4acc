#pragma once
// A device for tests that has streams: `PrivateUse1`, whose memory is the host's. It shows what one
// GPU, which is fast, hides: an event that is missing, memory that is used too soon, a host that
// waits. ATen's operators run on it by their CPU kernels; exchanges between ranks and copies wait
// in queues that run in random legal order (streams.h), and accesses that no event orders are
// faults (accesses.h). Model: pytorch's test/cpp_extensions/open_registration_extension.

namespace sherd::fake {

/// Makes the device known to LibTorch. At the start of each test that uses it.
void register_device();

}  // namespace sherd::fake
