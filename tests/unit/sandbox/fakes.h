/* Scripted stand-ins for golden, vm, guest and broker: every call can succeed, fail, hang, or end the VM.
 * The machines are a world of their own that outlives a controller, as VMMs outlive the daemon. */
#pragma once

#include "broker/broker.h"
#include "golden/golden.h"
#include "guest/guest.h"
#include "vm/vm.h"

enum fake_call {
    FAKE_RESERVE,
    FAKE_BOOT,
    FAKE_CREATE_VM,
    FAKE_LAUNCH,
    FAKE_ADOPT,
    FAKE_RESUME,
    FAKE_PAUSE,
    FAKE_VM_KILL,
    FAKE_LINK,  /* guest_create */
    FAKE_READY, /* the link's first answer: FAIL is a final loss */
    FAKE_IDENTIFY,
    FAKE_SHUTDOWN,
    FAKE_REMOVE,
    FAKE_KILL,
    FAKE_LIST,
    FAKE_PREPARE,
    FAKE_LOAD,
    FAKE_SAVE, /* vm_save_devices */
    FAKE_QUIESCE,
    FAKE_SYNC,
    FAKE_PARK,
    FAKE_REVERT,
    FAKE_BEGIN, /* of a snapshot, and the next three */
    FAKE_CAPTURE,
    FAKE_SEAL,
    FAKE_COPY,
    FAKE_CHECK, /* broker_snapshot_check */
    FAKE_PACK,
    FAKE_DROP, /* broker_snapshot_remove */
    FAKE_SNAPSHOTS,
    FAKE_CALLS
};

enum fake_mode {
    FAKE_OK,
    FAKE_FAIL, /* with the code */
    FAKE_HANG, /* never answers */
    FAKE_EXIT, /* the VM ends instead of an answer */
    FAKE_LATE  /* succeeds after fake_late_ms */
};

struct fake_machine {
    char id[ID_SIZE];
    bool alive;   /* a VMM runs */
    bool running; /* its vCPUs run */
    bool warm;    /* of the golden pool */
    bool owned;   /* golden_owns */
    unsigned identified;
    struct guest_identity identity; /* last confirmed */
    bool held;
    bool frozen; /* its processes */
    bool synced; /* since it last ran */
    bool parked;
    bool started;            /* launched from a snapshot and not loaded yet */
    struct vm_limits limits; /* that its VMM has been told, when its vCPUs were last made to run */
    /* How far its memory and its disk have come: the same, or a guest runs on a disk that is not its own. */
    unsigned memory, disk;
};

struct fake_snapshot {
    char id[ID_SIZE];
    char sandbox_id[ID_SIZE];
    bool full, captured, sealed, synced;
    bool torn; /* the guest ran on, or its processes did: nobody may go on from it */
    unsigned memory, disk;
};

/* Everything works again; the machines go. l: where answers come from. */
void fake_reset(struct loop *l);
void fake_mode(enum fake_call call, enum fake_mode mode, int code);
void fake_times(enum fake_call call, unsigned times); /* the mode applies so many times, then OK */
unsigned fake_count(enum fake_call call);
struct fake_machine *fake_find(const char *id); /* NULL: nothing of it is left */
struct fake_machine *fake_add(const char *id);  /* something the broker has */
unsigned fake_machines(void);
struct fake_snapshot *fake_snapshot(const char *id); /* NULL: no files of it */
struct fake_snapshot *fake_snapshot_add(const char *id);
unsigned fake_snapshots(void);
const char *fake_snapshots_text(void); /* what they are, for messages; static memory */
/* The broker ends with its daemon: requests it has are carried out (effect) or not, none is answered, and
 * what snapshots were being made is removed. VMMs live on. */
void fake_broker_end(bool effect);
void fake_pool(const char *path);                     /* where state files are made; kept over fake_reset */
void fake_version(const char *version);               /* of the VMM, from now on */
void fake_vsock(bool vsock);                          /* agents have a vsock port, from now on */
void fake_exit(const char *id, const char *why);      /* the VMM dies; "guest-reset" */
void fake_lose(const char *id, int code, bool final); /* the guest link */
void fake_relink(const char *id);                     /* and its return */
unsigned fake_objects(void);                          /* vm and guest objects alive */
unsigned fake_asked(void);                            /* answers still to come */
