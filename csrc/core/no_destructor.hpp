#pragma once

#include <new>

namespace onedsl {

// An object that is never destroyed, because daemon threads may use it during process exit.
template <class T>
class NoDestructor {
 public:
  NoDestructor() { renew(); }
  // The object is the result of `make`, which may throw.
  template <class Make>
  explicit NoDestructor(const Make& make) {
    new (storage_) T(make());
  }
  NoDestructor(const NoDestructor&) = delete;
  NoDestructor& operator=(const NoDestructor&) = delete;

  T& operator*() noexcept { return *std::launder(reinterpret_cast<T*>(storage_)); }
  T* operator->() noexcept { return &**this; }

  // Replace the object by a new one without destroying it, which leaks the memory that it owned.
  void renew() { new (storage_) T(); }

 private:
  alignas(T) unsigned char storage_[sizeof(T)];
};

}  // namespace onedsl
