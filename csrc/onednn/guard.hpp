#pragma once

namespace onedsl::onednn {

// Held by a thread while it is inside of oneDNN. A fork waits until nobody is: oneDNN's own
// mutexes, locked by a thread that the child does not have, would stay locked there for ever.
class InsideOneDNN {
 public:
  InsideOneDNN();
  ~InsideOneDNN();
  InsideOneDNN(const InsideOneDNN&) = delete;
  InsideOneDNN& operator=(const InsideOneDNN&) = delete;
};

}  // namespace onedsl::onednn
