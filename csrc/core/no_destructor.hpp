#pragma once

#include <new>

namespace onedsl {

// A T that is never destroyed: daemon threads may come by while the process ends.
template <class T>
class NoDestructor {
 public:
  NoDestructor() { renew(); }
  NoDestructor(const NoDestructor&) = delete;
  NoDestructor& operator=(const NoDestructor&) = delete;

  T& operator*() noexcept { return *std::launder(reinterpret_cast<T*>(storage_)); }
  T* operator->() noexcept { return &**this; }

  // A new T in place of the old one, whose memory is lost.
  void renew() { new (storage_) T(); }

 private:
  alignas(T) unsigned char storage_[sizeof(T)];
};

}  // namespace onedsl
