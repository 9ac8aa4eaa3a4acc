// A libcuda.so.1 that says what the environment has it say: NVIDIA's driver, for messages about it.
//   FAKE_CUDA_VERSION=13000   FAKE_GPUS=2   FAKE_CAPABILITY=90   FAKE_INIT=0   FAKE_RETAIN=0

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

int number(const char* name, int otherwise) {
  const char* const given = std::getenv(name);
  return given == nullptr ? otherwise : std::atoi(given);
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_CUDA_VERSION", 13000);
  return 0;
}

int cuInit(unsigned /*flags*/) {
  return number("FAKE_INIT", 0);
}

int cuDeviceGetCount(int* count) {
  *count = number("FAKE_GPUS", 1);
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetName(char* name, int size, int /*device*/) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(size));
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  const int capability = number("FAKE_CAPABILITY", 90);
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int /*device*/) {
  *bytes = std::size_t{80} << 30;
  return 0;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, device, 16);
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = "as the test wants it";
  return error == 0 ? 1 : 0;
}

int cuDevicePrimaryCtxRetain(void** context, int /*device*/) {
  *context = nullptr;
  return number("FAKE_RETAIN", 0);
}
}
