// Usage: kernels_<policy>_<isa> ISA. Exit status 0: all passed, 1: a case failed, 77: not on this machine.
#include <cstdio>
#include <cstring>

void test_add();
void test_analysis();
void test_colouring();
void test_comparison();
void test_device_algebra();
void test_device_grid();
void test_device_incomplete();
void test_device_sizes();
void test_device_stencils();
void test_device_pcg();
void test_device_band();
void test_device_triangular();
void test_device_richardson();
void test_incomplete();
void test_products();
void test_pcg();
void test_richardson();
void test_row_passes();
void test_spgemm();
void test_stencils();
void test_sptrsv();

int main(int argc, char** argv) {
  const char* isa = argc > 1 ? argv[1] : "baseline";
#if defined(__x86_64__)
  if ((std::strcmp(isa, "v3") == 0 && !__builtin_cpu_supports("x86-64-v3")) ||
      (std::strcmp(isa, "v4") == 0 && !__builtin_cpu_supports("x86-64-v4"))) {
    std::printf("%s: not on this machine\n", isa);
    return 77;
  }
#endif
  test_comparison();
  test_analysis();
  test_colouring();
  test_products();
  test_incomplete();
  test_pcg();
  test_richardson();
  test_spgemm();
  test_stencils();
  test_sptrsv();
  test_add();
#ifdef LEARNSOLVE_TEST_DEVICE_GRID
  test_device_grid();
  test_device_pcg();
#endif
#ifdef LEARNSOLVE_TEST_DEVICE_BODIES
  test_row_passes();
  test_device_algebra();
  test_device_incomplete();
  test_device_sizes();
  test_device_stencils();
  test_device_band();
  test_device_triangular();
  test_device_richardson();
#endif
  std::printf("%s: passed\n", isa);
}
