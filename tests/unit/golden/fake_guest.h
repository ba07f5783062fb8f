/* The guest library's functions as golden uses them, played: link fake_guest.c instead of libguest. */
#pragma once

#include "guest/guest.h"

enum fake_guest_mode {
    FAKE_GUEST_WORKS,
    FAKE_GUEST_SILENT,        /* never ready */
    FAKE_GUEST_LOST,          /* lost for good before it was ready */
    FAKE_GUEST_LOST_LATE,     /* the same, after 700 ms */
    FAKE_GUEST_NO_IDENTITY,   /* refuses guest_identify */
    FAKE_GUEST_NO_PROCESS,    /* the process cannot be started in the guest */
    FAKE_GUEST_PROCESS_HANGS, /* it never ends */
    FAKE_GUEST_NO_SYNC,
};

void fake_guest_mode(enum fake_guest_mode mode);
unsigned fake_guest_created(void);
unsigned fake_guest_alive(void); /* not destroyed */
unsigned fake_guest_identified(void);
unsigned fake_guest_started(void); /* processes started; each after an identity was confirmed */
unsigned fake_guest_synced(void);
void fake_guest_reset(void);
