/* What `configure` of nbd finds on a Linux system, as far as nbd-tester-client asks for it. */
#define HAVE_FDATASYNC 1
#define HAVE_MKSTEMP 1
#define HAVE_GNUTLS 0
#define SIZEOF_UNSIGNED_SHORT_INT 2
#define SIZEOF_UNSIGNED_INT 4
#define SIZEOF_UNSIGNED_LONG_INT 8
#define SIZEOF_UNSIGNED_LONG_LONG_INT 8
