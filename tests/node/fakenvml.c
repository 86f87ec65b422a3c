/* NVML as the probe calls it, on a machine described in the file that FAKE_NVML names:
 * the number of GPUs; for each pair of them, row by row, NVML's topology level (0 on the diagonal); the same for the
 * number of direct NVLinks; for each GPU the number of its NVLinks to a switch, -1: it has no NVLink at all. A line may
 * follow for each GPU: used bytes, utilisation, that of the memory controller, temperature, milliwatts, and the name;
 * -1: NVML has no answer; a used memory of -2: the GPU is lost.
 * How the GPUs are is read anew each time, from the file of that name and ".health": for each a line with 1 if it is lost,
 * the number of its double-bit ECC errors, why its clocks are low, and the recovery action (-1: NVML doesn't say). In the
 * one with ".xids" is a line for each error: the GPU and the number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define UNKNOWN 999
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define MOST 16

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} Pci;

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Rates;
typedef struct { long long used; int gpu, controller, temperature, power; char name[96]; } Card;

static Card cards[MOST];
static int gpus, level[MOST][MOST], direct[MOST][MOST], switched[MOST];

static int of(void *handle) { return (int)(long)handle - 1; }

static void read_matrix(FILE *file, int matrix[MOST][MOST]) {
    for (int x = 0; x < gpus; x++)
        for (int y = 0; y < gpus; y++)
            if (fscanf(file, "%d", &matrix[x][y]) != 1) abort();
}

int nvmlInitWithFlags(unsigned int flags) {
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    if (!file || fscanf(file, "%d", &gpus) != 1) return UNKNOWN;
    read_matrix(file, level);
    read_matrix(file, direct);
    for (int x = 0; x < gpus; x++)
        if (fscanf(file, "%d", &switched[x]) != 1) abort();
    for (int x = 0; x < gpus; x++) {
        Card none = {-1, -1, -1, -1, -1, "Unknown"}, *card = &cards[x];
        if (fscanf(file, "%lld %d %d %d %d %95[^\n]", &card->used, &card->gpu, &card->controller, &card->temperature,
                   &card->power, card->name) != 6)
            *card = none;
        memmove(card->name, card->name + strspn(card->name, " "), strlen(card->name + strspn(card->name, " ")) + 1);
    }
    fclose(file);
    return SUCCESS;
}

typedef struct { int lost, ecc, reasons, recovery; } Health;

static FILE *beside(const char *ending) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s", getenv("FAKE_NVML"), ending);
    return fopen(path, "r");
}

static Health health(void *handle) {
    Health found = {0, 0, 0, -1};
    FILE *file = beside(".health");
    for (int x = 0; file && x <= of(handle); x++)
        if (fscanf(file, "%d %d %d %d", &found.lost, &found.ecc, &found.reasons, &found.recovery) != 4) abort();
    if (file) fclose(file);
    return found;
}

int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *errors) {
    *errors = type == 1 && counter == 0 ? (unsigned long long)health(handle).ecc : 0;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    *reasons = (unsigned long long)health(handle).reasons;
    return SUCCESS;
}

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    union { unsigned int ui; double d; } value;
} FieldValue;

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values) {
    for (int n = 0; n < count; n++) {
        int action = values[n].fieldId == 230 ? health(handle).recovery : -1;
        values[n].nvmlReturn = action < 0 ? NOT_SUPPORTED : SUCCESS;
        values[n].value.ui = (unsigned int)action;
    }
    return SUCCESS;
}

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned int gpuInstance, computeInstance;
} Event;

static int told;

int nvmlEventSetCreate(void **set) { *set = &told; return SUCCESS; }

int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    (void)handle, (void)set;
    return types == 8 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *set, Event *event, unsigned int milliseconds) {
    (void)set, (void)milliseconds;
    FILE *file = beside(".xids");
    int gpu = -1, xid = 0, lines = 0;
    while (file && lines <= told && fscanf(file, "%d %d", &gpu, &xid) == 2) lines++;
    if (file) fclose(file);
    if (lines <= told) return TIMEOUT;
    told++;
    *event = (Event){(void *)(long)(gpu + 1), 8, (unsigned long long)xid, 0, 0};
    return SUCCESS;
}

static Card *card(void *handle) { return &cards[of(handle)]; }

int nvmlDeviceGetName(void *handle, char *name, unsigned int length) {
    snprintf(name, length, "%s", card(handle)->name);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    memset(memory, 0, sizeof *memory);
    memory->used = (unsigned long long)card(handle)->used;
    return card(handle)->used < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, Rates *rates) {
    rates->gpu = (unsigned int)card(handle)->gpu;
    rates->memory = (unsigned int)card(handle)->controller;
    return card(handle)->gpu < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned int *degrees) {
    *degrees = (unsigned int)card(handle)->temperature;
    return sensor != 0 || card(handle)->temperature < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts) {
    *milliwatts = (unsigned int)card(handle)->power;
    return card(handle)->power < 0 ? NOT_SUPPORTED : SUCCESS;
}

typedef struct { unsigned long long timestamp; union { unsigned int ui; double d; } value; } Sample;

/* A sample for each time that it is asked, as the card computes by the file above. */
int nvmlDeviceGetSamples(void *handle, int type, unsigned long long since, int *value_type, unsigned int *count,
                         Sample *samples) {
    if (type != 1 || card(handle)->gpu < 0) return NOT_SUPPORTED;
    *value_type = 1;
    *count = 1;
    if (samples) samples[0] = (Sample){since + 1, {(unsigned int)card(handle)->gpu}};
    return SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned int *count) { *count = gpus; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) { *handle = (void *)(long)(index + 1); return SUCCESS; }

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length) {
    if (cards[of(handle)].used == -2 || health(handle).lost) return GPU_IS_LOST;
    snprintf(uuid, length, "GPU-%d", of(handle));
    return SUCCESS;
}

static int bus_id(int gpu, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", gpu + 1);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) { return bus_id(of(handle), pci); }

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned int *found) {
    *found = level[of(one)][of(other)];
    return SUCCESS;
}

/* Where a link ends: the peer, gpus for a switch, -1 for nowhere. */
static int end(int gpu, unsigned int link) {
    for (int peer = 0; peer < gpus; peer++)
        for (int n = 0; n < direct[gpu][peer]; n++)
            if (link-- == 0) return peer;
    return (int)link < switched[gpu] ? gpus : -1;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned int link, unsigned int *active) {
    if (switched[of(handle)] < 0) return NOT_SUPPORTED;
    if (level[of(handle)][of(handle)] == -1) return UNKNOWN;
    *active = end(of(handle), link) >= 0;
    return *active || link < 12 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned int link, Pci *pci) {
    int remote = end(of(handle), link);
    return bus_id(remote < gpus ? remote : 200, pci);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned int link, unsigned int *type) {
    *type = end(of(handle), link) < gpus ? 0 : 2;
    return SUCCESS;
}

const char *nvmlErrorString(int error) { return error == UNKNOWN ? "Unknown Error" : "Error"; }
