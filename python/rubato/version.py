VERSION = "0.1.0"  # that of CMakeLists.txt, which reads this line and compares
