#pragma once
// A store that only the ranks of a job can write to.

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sherd::detail {

/// Every program that reaches its port can write to the store of a rendezvous. This one keeps its
/// keys under a prefix derived from the job's secret, and authenticates each value (HMAC-SHA-256
/// over key and value). Nothing is encrypted. Counters (`add`) are not sealed.
class SealedStore final : public c10d::Store {
 public:
  SealedStore(c10::intrusive_ptr<c10d::Store> store, std::string secret);

  /// Tells secrets apart, and tells nothing else of them.
  [[nodiscard]] static std::string fingerprint_of(const std::string& secret);
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<SealedStore>(store_->clone(), secret_);
  }
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(place_of(key), sealed(key, value));
  }
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  /// Throws Error(Unavailable), naming the key, for a value that no rank of this job has written.
  std::vector<uint8_t> get(const std::string& key) override {
    return opened(key, store_->get(place_of(key)));
  }
  int64_t add(const std::string& key, int64_t value) override {
    return store_->add(place_of(key), value);
  }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(place_of(key)); }
  bool check(const std::vector<std::string>& keys) override {
    return store_->check(places_of(keys));
  }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(places_of(keys)); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_->wait(places_of(keys), timeout);
  }
  const std::chrono::milliseconds& getTimeout() const noexcept override {
    return store_->getTimeout();
  }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    store_->setTimeout(timeout);
  }
  bool hasExtendedApi() const override { return false; }

 private:
  [[nodiscard]] std::string place_of(const std::string& key) const { return prefix_ + key; }
  [[nodiscard]] std::vector<std::string> places_of(const std::vector<std::string>& keys) const;
  [[nodiscard]] std::vector<uint8_t> sealed(const std::string& key,
                                            const std::vector<uint8_t>& value) const;
  [[nodiscard]] std::vector<uint8_t> opened(const std::string& key,
                                            const std::vector<uint8_t>& found) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string secret_;
  std::string prefix_;
};

}  // namespace sherd::detail
