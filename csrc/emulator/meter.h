// Between the emulator and the meter (meter.cpp), which native tests do without.
#pragma once

#include <cstdint>

namespace learnsolve::emulator {

// Own: the host's arguments, the stack of the running thread, what it is told about itself.
enum class Memory : uint8_t { device, shared, own };
Memory memory_of(const void* at);

// These begin and end a launch, and end a block.
[[gnu::weak]] void meter_launch(const char* kernel);
[[gnu::weak]] void meter_end();
[[gnu::weak]] void meter_block();

}  // namespace learnsolve::emulator
