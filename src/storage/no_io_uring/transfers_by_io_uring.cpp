// Where liburing was not found.

#include "storage/transfers.h"

namespace sherd::detail {

std::unique_ptr<Transfers> transfers_by_io_uring(int /*descriptor*/, std::string /*name*/) {
  return nullptr;
}

}  // namespace sherd::detail
