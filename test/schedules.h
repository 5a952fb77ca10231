// The same work in different orders: threads of the simulated GPU, OpenMP threads of the CPU.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace goat::test {

// CHECKs that work(), which runs operations on the device and returns what they leave, returns the same bits
// every time: on simt with the threads of a block ascending, descending and in two random orders, with
// asynchronous copies landing early, late and at random, and with the work of streams running at once, late
// and at random; on the cpu for several numbers of OpenMP threads; on other devices again and again. work()
// starts from the same operands at every call.
void check_schedules(const std::string& device_name, const std::function<std::vector<double>()>& work);

std::vector<double> concatenated(std::initializer_list<std::vector<double>> parts);

}  // namespace goat::test
