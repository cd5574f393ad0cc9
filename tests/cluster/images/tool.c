/* The one program of the cluster's own image: what a pod sandbox runs, and what its tests ask.
 *
 *   tool pause              waits for a signal; adopts and reaps (process 1 of a pod)
 *   tool serve PORT WORD    answers every connection with WORD, and prints who asked
 *   tool ask HOST PORT      connects each second until an answer comes, prints it, ends
 *   tool fill FILE BYTES    writes so much into a file, prints that, waits for a signal
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number) {
  (void)number;
  _exit(0);
}

static void reap(int number) {
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

static int fail(const char* what) {
  perror(what);
  return 1;
}

static void pause_forever(void) {
  signal(SIGCHLD, reap);
  for (;;) pause();
}

static int serve(int port, const char* word) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (struct sockaddr*)&at, sizeof at) != 0) return fail("bind");
  if (listen(listener, 16) != 0) return fail("listen");
  printf("serving %s on %d\n", word, port);
  for (;;) {
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    const int stream = accept(listener, (struct sockaddr*)&peer, &size);
    if (stream < 0) continue;
    dprintf(stream, "%s\n", word);
    close(stream);
    printf("asked by %s\n", inet_ntoa(peer.sin_addr));
  }
}

static int ask(const char* host, int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  if (inet_pton(AF_INET, host, &at.sin_addr) != 1) return fail(host);
  for (;; sleep(1)) {
    const int stream = socket(AF_INET, SOCK_STREAM, 0);
    const struct timeval limit = {.tv_sec = 5};
    char answer[256];
    ssize_t size = -1;
    setsockopt(stream, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // of connect, too
    setsockopt(stream, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(stream, (struct sockaddr*)&at, sizeof at) == 0) {
      size = read(stream, answer, sizeof answer - 1);
    }
    if (size > 0) {
      answer[size] = 0;
      printf("answer: %s", answer);
      return 0;
    }
    printf("no answer yet: %s\n", strerror(errno));
    close(stream);
  }
}

static int fill(const char* path, long bytes) {
  static const char kBlock[1 << 16];
  FILE* file = fopen(path, "w");
  if (file == NULL) return fail(path);
  for (long done = 0; done < bytes; done += (long)sizeof kBlock) {
    fwrite(kBlock, 1, sizeof kBlock, file);
  }
  fclose(file);
  printf("filled %s with %ld bytes\n", path, bytes);
  pause_forever();
  return 0;
}

int main(int count, char** words) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGTERM, leave);
  signal(SIGINT, leave);
  if (count == 4 && strcmp(words[1], "serve") == 0) return serve(atoi(words[2]), words[3]);
  if (count == 4 && strcmp(words[1], "ask") == 0) return ask(words[2], atoi(words[3]));
  if (count == 4 && strcmp(words[1], "fill") == 0) return fill(words[2], atol(words[3]));
  pause_forever();
  return 0;
}
