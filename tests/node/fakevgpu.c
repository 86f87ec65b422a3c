/* HAMi-core as its node sees it: makes a shared region, and writes it from a process for each slot.
 *
 * fakevgpu FILE VERSION DEVICES PROCESSES, with VERSION 0, 1 or 2 (the one before 1.1, 1.1, 1.2). Standard input has a
 * command a line; each is answered with a line when it is done:
 *   uuid DEVICE TEXT; limit DEVICE BYTES; kernel TIME; tail RECENT SWITCH PRIORITY
 *   use PROCESS DEVICE CONTEXT MODULE DATA TOTAL SM: written by the process itself
 *   end PROCESS: the process ends, its slot stays
 *   churn: all processes take and give memory, total = context + module + data, until the input ends
 *   tail? answers recent_kernel and utilization_switch */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICES 16
#define SLOTS 1024
#define MAGIC 19920718

typedef struct { char bytes[32]; } Semaphore __attribute__((aligned(4)));
typedef struct { uint64_t context, module, data, offset, total, unused[3]; } Memory1;
typedef struct { uint64_t decoder, encoder, sm, unused[3]; } Busy1;
typedef struct {
    int32_t pid, hostpid;
    Memory1 used[DEVICES];
    uint64_t monitorused[DEVICES];
    Busy1 busy[DEVICES];
    int32_t status;
    _Atomic uint64_t seqlock;
    uint64_t unused[2];
} Slot1;
typedef struct {
    int32_t initialized, major, minor, sm_init;
    uint64_t owner;
    Semaphore semaphore;
    uint64_t device_num;
    char uuids[DEVICES][96];
    uint64_t limit[DEVICES], sm_limit[DEVICES];
    Slot1 slots[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
    uint64_t last_kernel_time, unused[4];
} Region1;

typedef struct { uint64_t context, module, data, offset, total; } Memory0;
typedef struct { uint64_t decoder, encoder, sm; } Busy0;
typedef struct {
    int32_t pid, hostpid;
    Memory0 used[DEVICES];
    uint64_t monitorused[DEVICES];
    Busy0 busy[DEVICES];
    int32_t status;
} Slot0;
typedef struct {
    int32_t initialized, sm_init;
    uint32_t owner;
    Semaphore semaphore;
    uint64_t device_num;
    char uuids[DEVICES][96];
    uint64_t limit[DEVICES], sm_limit[DEVICES];
    Slot0 slots[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
} Region0;

_Static_assert(sizeof(Region1) == 2008952, "v1");
_Static_assert(sizeof(Slot1) == 1960, "v1");
_Static_assert(sizeof(Region0) == 1197896, "v0");
_Static_assert(sizeof(Slot0) == 1168, "v0");

static int version, devices, processes;
static Region1 *one;
static Region0 *zero;

#define BOTH(field) (version ? &one->field : &zero->field)

static void locked(int process) { if (version == 2) atomic_fetch_add(&one->slots[process].seqlock, 1); }

static void use(int process, int device, const uint64_t *v) {
    locked(process);
#define WRITE(slot) do { (slot)->used[device].context = v[0]; (slot)->used[device].module = v[1]; \
        (slot)->used[device].data = v[2]; (slot)->used[device].total = v[3]; (slot)->busy[device].sm = v[4]; } while (0)
    if (version) WRITE(&one->slots[process]); else WRITE(&zero->slots[process]);
    locked(process);
}

static void churn(int process) {
    for (uint64_t turn = 1;; turn++)
        for (int device = 0; device < devices; device++) {
            uint64_t data = turn % 1000 << 20, values[] = {300, 40, data, 340 + data, turn % 101};
            use(process, device, values);
            usleep(20); /* as often as a busy program asks for memory */
        }
}

/* A process of the container: takes commands from its pipe until that ends. */
static void serve(int process, FILE *commands, int answers) {
    if (version) { one->slots[process].pid = getpid(); one->slots[process].status = 1; }
    else { zero->slots[process].pid = getpid(); zero->slots[process].status = 1; }
    uint64_t v[5];
    int device;
    char word[8];
    if (write(answers, "+", 1) != 1) _exit(1);
    while (fscanf(commands, "%7s", word) == 1) {
        if (!strcmp(word, "churn")) { if (write(answers, "+", 1) != 1) _exit(1); churn(process); }
        if (!strcmp(word, "end")) {
            if (version) one->slots[process].status = 0; else zero->slots[process].status = 0;
        } else if (fscanf(commands, "%d %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
                          &device, v, v + 1, v + 2, v + 3, v + 4) == 6) {
            use(process, device, v);
        }
        if (write(answers, "+", 1) != 1) _exit(1);
    }
    _exit(0);
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    version = atoi(arguments[2]);
    devices = atoi(arguments[3]);
    processes = atoi(arguments[4]);
    size_t size = version ? sizeof(Region1) : sizeof(Region0);
    int file = open(arguments[1], O_RDWR | O_CREAT, 0666);
    if (file < 0 || pwrite(file, "", 1, (off_t)size) != 1) return 3;
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) return 4;
    one = found;
    zero = found;
    if (version) { one->major = 1; one->minor = version; }
    *BOTH(device_num) = (uint64_t)devices;
    *BOTH(proc_num) = processes;
    *BOTH(initialized) = MAGIC;

    int answers[2];
    if (pipe(answers)) return 5;
    FILE **commands = calloc((size_t)processes, sizeof *commands);
    pid_t *children = calloc((size_t)processes, sizeof *children);
    char plus;
    for (int process = 0; process < processes; process++) {
        int ends[2];
        if (pipe(ends)) return 5;
        children[process] = fork();
        if (children[process] == 0) {
            close(ends[1]);
            serve(process, fdopen(ends[0], "r"), answers[1]);
        }
        close(ends[0]);
        commands[process] = fdopen(ends[1], "w");
        if (read(answers[0], &plus, 1) != 1) return 6;
    }
    puts("ready");
    fflush(stdout);

    char line[256], text[128];
    int index, a, b, c;
    uint64_t number;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "uuid %d %127s", &index, text) == 2) strncpy(version ? one->uuids[index] : zero->uuids[index], text, 95);
        else if (sscanf(line, "limit %d %" SCNu64, &index, &number) == 2) (version ? one->limit : zero->limit)[index] = number;
        else if (sscanf(line, "kernel %" SCNu64, &number) == 1) one->last_kernel_time = number;
        else if (sscanf(line, "tail %d %d %d", &a, &b, &c) == 3) {
            *BOTH(recent_kernel) = a; *BOTH(utilization_switch) = b; *BOTH(priority) = c;
        } else if (!strncmp(line, "tail?", 5)) {
            printf("%d %d\n", *BOTH(recent_kernel), *BOTH(utilization_switch));
            fflush(stdout);
            continue;
        } else if (sscanf(line, "use %d %[^\n]", &index, text) == 2 || sscanf(line, "end %d", &index) == 1) {
            fprintf(commands[index], line[0] == 'u' ? "use %s\n" : "end\n", text);
            fflush(commands[index]);
            if (read(answers[0], &plus, 1) != 1) return 6;
        } else if (!strncmp(line, "churn", 5)) {
            for (int process = 0; process < processes; process++) {
                fputs("churn\n", commands[process]);
                fflush(commands[process]);
                if (read(answers[0], &plus, 1) != 1) return 6;
            }
        } else return 7;
        puts("done");
        fflush(stdout);
    }
    for (int process = 0; process < processes; process++) kill(children[process], SIGKILL);
    while (wait(NULL) > 0) {}
    return 0;
}
