/* Signals by name, with the numbers that Linux uses on every architecture the guest may have. */
#pragma once

/* Number of "SIGTERM" or "TERM"; 0 when there is none of that name. */
int signal_number(const char *name);

/* "SIGTERM" for its number, NULL for one without a name. */
const char *signal_name(int number);
